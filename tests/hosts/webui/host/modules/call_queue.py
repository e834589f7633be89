"""One generation at a time."""

import threading

queue_lock = threading.Lock()
