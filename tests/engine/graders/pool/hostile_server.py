"""A grading process for tests: it follows the order in the completion's text, in the pool's protocol.

Run as a program: `python hostile_server.py [refuse | die]`.
"""

import json
import os
import subprocess
import sys
import time


def say(data: object) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def score(**more: object) -> dict[str, object]:
    return {"reward": 1.0, "parts": {"math": 1.0}, **more}


def obey(number: int, order: str) -> None:
    if order == "hang":
        time.sleep(3600)
    elif order == "hang with a child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        with open(os.environ["TMPDIR"] + "/grandchild", "w") as file:
            file.write(str(child.pid))
        time.sleep(3600)
    elif order == "flood":
        while True:
            sys.stdout.write("x" * 65_536)
    elif order == "die":
        os._exit(3)
    elif order == "garbage":
        say("not an object")
    elif order == "another id":
        say({"id": number + 1, "score": score()})
    elif order == "no score":
        say({"id": number, "score": {"reward": "much"}})
    elif order == "twice":
        sys.stdout.write(json.dumps({"id": number, "score": score()}) + "\n")
        say({"id": number, "score": score(reward=0.0)})
    elif order == "afterwards":
        say({"id": number, "score": score()})
        say({"id": number + 1, "score": score(reward=0.0)})
    elif order == "environment":
        seen = {"names": sorted(os.environ), "descriptors": sorted(os.listdir("/proc/self/fd"))}
        seen |= {"session": os.getsid(0) == os.getpid()}
        say({"id": number, "score": score(feedback=json.dumps(seen))})
    else:
        say({"id": number, "score": score(feedback=str(os.getpid()))})


def main(start: str) -> None:
    sys.stdin.readline()
    if start == "die":
        sys.exit(5)
    if start == "refuse":
        say({"error": "no such rule"})
        return
    say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        obey(request["id"], request["sample"]["output_text"])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
