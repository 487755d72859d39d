"""Whether a request is signed as S3 wants it: computed again by botocore's own signer."""

import re
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<day>\d{8})/(?P<region>[^/]+)/s3/aws4_request, "
    r"SignedHeaders=(?P<headers>[\w;-]+), Signature=(?P<signature>[0-9a-f]{64})"
)
_ALWAYS = {"host", "x-amz-content-sha256", "x-amz-date"}
"""What a signature has to be over."""


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    """What opens a bucket."""

    key: str
    secret: str

    def __call__(self, request: BaseHTTPRequestHandler) -> str:
        """Return what S3 calls wrong with the signature of a request, or nothing."""
        found = _SIGNED.fullmatch(request.headers.get("Authorization", ""))
        if found is None or not set(found["headers"].split(";")) >= _ALWAYS:
            return "AccessDenied"
        if found["key"] != self.key:
            return "InvalidAccessKeyId"
        expected = self._signature(request, found["region"], found["headers"].split(";"))
        return "" if found["signature"] == expected else "SignatureDoesNotMatch"

    def _signature(self, request: BaseHTTPRequestHandler, region: str, names: list[str]) -> str:
        from botocore.auth import S3SigV4Auth  # noqa: PLC0415 -- optional dependency
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415 -- the same
        from botocore.credentials import Credentials  # noqa: PLC0415 -- the same

        url = f"http://{request.headers['host']}{request.path}"
        headers = {name: request.headers[name] for name in names}
        again = AWSRequest(method=request.command, url=url, headers=headers)
        again.context["timestamp"] = request.headers["x-amz-date"]
        signer = S3SigV4Auth(Credentials(self.key, self.secret), "s3", region)
        text = signer.string_to_sign(again, signer.canonical_request(again))
        signature: str = signer.signature(text, again)
        return signature
