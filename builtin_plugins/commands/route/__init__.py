"""`engine route`: engines that compute prompts and engines that go on with them, behind one
address.
"""
