"""Where rows and states of clients live; ``local`` has them in the threads of this process."""
