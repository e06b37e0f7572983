"""The field `tenant` separates requests in the prefix cache."""

import hashlib
from dataclasses import replace

from core.api import InvalidRequest, hookimpl

EXAMPLE_REQUESTS = [({"tenant": "red"}, "hello", "hello")]


class Tenants:
    keywords = ("tenant",)
    fields = ("tenant",)

    def prepare(self, request):
        tenant = request.plugin_fields["tenant"]
        if not isinstance(tenant, str) or not tenant.isidentifier():
            raise InvalidRequest("tenant", "must be a name of letters, digits and underscores.")
        domain = ("tenant", hashlib.sha256(tenant.encode()).digest())
        return replace(request, cache_domains=(*request.cache_domains, domain))


@hookimpl
def engine_admission_extensions(config, registry):
    return [Tenants()]
