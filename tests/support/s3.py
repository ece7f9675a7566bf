"""An S3-compatible server, as fixtures: import both."""

import pytest


@pytest.fixture(scope="session")
def s3_server():
    """An S3-compatible server: moto's, in a thread of this process, on a port that the system chooses."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server, monkeypatch):
    """s3:// URLs lead to that server, where there is one empty bucket, `traces`."""
    import s3fs

    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_server,
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    filesystem = s3fs.S3FileSystem()
    filesystem.mkdir("traces")
    yield filesystem
    filesystem.rm("traces", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()
