"""Starting and stopping a recording: sessions, schedules, handlers and the engines that record."""
