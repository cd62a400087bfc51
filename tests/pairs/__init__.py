"""The covering array: every two features of a Hopper kernel that can meet, in specs that only tests want."""
