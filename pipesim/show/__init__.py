"""What people see: figures, traces, the page."""
