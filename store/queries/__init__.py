"""Every query and write of the record, by process. The only queries of the project.

Plain functions of a synchronous connection, to be run by `store.database.Database` as one transaction each; `store.record.Record` is
the interface through which the processes call them. `common` holds what several of them share.
"""
