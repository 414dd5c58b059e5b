"""What tests of several folders share: real servers, fake engines, hostile addresses, waiting.

No test and no fixture: fixtures are in the `conftest.py` of the folder that uses them.
"""
