"""Hold what `format` means for texts. Formats that are not here are annotations, as JSON Schema has it.

Sources: RFC 3339 (dates, without leap seconds), RFC 6901 (JSON pointers), RFC 3986 (URIs).
"""

_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # from 0001 on, as Python's and most others' dates
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP}-02-29)"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_URI_CHARACTER = r"([a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})"
_RELATIVE = rf"(/|(/?{_URI_CHARACTER.replace(':', '')}+)?(/{_URI_CHARACTER}+)*/?)"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"

PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "hostname": rf"^{_LABEL}(\.{_LABEL}){{0,3}}$",  # four labels of 63 characters: 253 is the most
    "idn-hostname": rf"^{_LABEL}(\.{_LABEL}){{0,3}}$",
    "json-pointer": "^(/([^~/]|~[01])*)*$",
    "relative-json-pointer": "^(0|[1-9][0-9]{0,9})(#|(/([^~/]|~[01])*)*)$",
    "uri-reference": rf"^{_RELATIVE}(\?({_URI_CHARACTER}|[/?])*)?(#({_URI_CHARACTER}|[/?])*)?$",
    "iri-reference": rf"^{_RELATIVE}(\?({_URI_CHARACTER}|[/?])*)?(#({_URI_CHARACTER}|[/?])*)?$",
}
# Names of formats in llguidance, any of which will do.
BY_LLGUIDANCE = {
    "duration": ("duration",),
    "email": ("email",),
    "idn-email": ("email",),
    "ipv4": ("ipv4",),
    "ipv6": ("ipv6",),
    "ipvanyaddress": ("ipv4", "ipv6"),  # pydantic's
    "uri": ("uri",),
    "iri": ("uri",),
    "uuid": ("uuid",),
}
