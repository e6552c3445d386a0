"""Every question the house asks of the record and every write, by who asks. The only queries.

Plain functions of a synchronous connection, to be run by `store.database.Database` as one transaction each; `store.record.Record` is
the door through which the processes come. `common` holds what several of them share.
"""
