"""The pipeline that every protocol of conversations is a form of: checked, rendered, generated,
read.
"""
