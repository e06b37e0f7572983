"""The weights of gpt-oss checkpoints: experts in blocks of four-bit numbers, which the experts unpack; all else plain."""

from core.nn.linear import PlainWeights


class Mxfp4(PlainWeights):
    """Linear layers outside the experts are stored as they are."""

    name = "mxfp4"
