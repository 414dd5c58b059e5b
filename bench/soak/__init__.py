"""Jobs that run while processes are killed. Measures whether anything is lost, not speed."""
