"""The fixtures of the proxy's tests."""

from tests.proxy.conftest import empty_record, record_file

__all__ = ["empty_record", "record_file"]
