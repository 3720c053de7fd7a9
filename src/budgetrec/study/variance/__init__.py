"""The noise law against simulation."""
