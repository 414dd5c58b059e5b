"""`worker.cluster.driver` with less patience for ranks that do not start."""

import sys

from worker.cluster import driver

if __name__ == "__main__":
    driver.START_SECONDS = 30.0
    driver.main(sys.argv[1:])
