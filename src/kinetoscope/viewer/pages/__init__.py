"""The responses for each page of the viewer: the `ROUTES` of each module are those of the server, which finds them by itself."""
