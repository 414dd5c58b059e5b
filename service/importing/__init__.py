"""Configurations of other trainers (TRL, Axolotl, verl) translated into a job."""
