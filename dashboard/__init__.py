"""The web page: a process of its own, so that a page never delays a reply. The gateway forwards its paths.

Every page is HTML made on the server and works without JavaScript; htmx replaces parts of a page every few seconds where a browser runs it.
"""
