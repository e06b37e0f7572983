"""`engine plan`: will the model fit?"""
