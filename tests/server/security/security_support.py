"""Certificates, stores and listeners for the tests of security."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from server.config.kafka_config import KafkaConfig
from server.network.listeners import Listener
from server.security.listener_security import SecuredListener
from server.security.sasl.scram import ScramCredential, TokenCredential

# Made by keytool 17: password "changeit", an EC key, CN=broker; the same certificate as authority.
KEY_STORE_JKS = base64.b64decode(
    "/u3+7QAAAAIAAAABAAAAAQABawAAAaIFQ0OSAAAAfzB9MA4GCisGAQQBKgIRAQEFAARrBhmz+TID9euG9JIV+FCOthbZpaN9Kum+/jZFxLmQErA7QnuETz9V3GNO5AZugrXcPqhar8D5wAT16KwhfQCONl8MzI4vmRDnsIjyHTnzHf4KvRwwxyvCE/LlOSzSzOKpTfEvRz5ar4BT73UAAAABAAVYLjUwOQAAAYYwggGCMIIBKKADAgECAgkA3MT5/y+OSzIwCgYIKoZIzj0EAwIwNDESMBAGCSqGSIb3DQEJARYDeEB5MQ0wCwYDVQQKEwRBLCBCMQ8wDQYDVQQDEwZicm9rZXIwIBcNMjYxMTIyMjE1NzAzWhgPMjEyNjEwMjkyMTU3MDNaMDQxEjAQBgkqhkiG9w0BCQEWA3hAeTENMAsGA1UEChMEQSwgQjEPMA0GA1UEAxMGYnJva2VyMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEx64Dp4RlpGsG+IS9bCAxwOaxpWugITzMjW7+1Dxw/o7fG2jitSubx59CATu5AshVxYoyQ7K1IEhS8UGKsIB0EaMhMB8wHQYDVR0OBBYEFM6ZyfUe175yC006wDiQPd6I4o47MAoGCCqGSM49BAMCA0gAMEUCIQDPatHbLONdtC1ycn4LQwIkki88HYrO3hdwk1UaefeqdwIgfVTcFIgzQgOsaUvjW/vvjN+YGt8UPbQgbAI37OBKmaL+6iCpieQM84h5KDgvZRdtlGP0kA=="
)
TRUST_STORE_JKS = base64.b64decode(
    "/u3+7QAAAAIAAAABAAAAAgACY2EAAAGiBUNGFgAFWC41MDkAAAGGMIIBgjCCASigAwIBAgIJANzE+f8vjksyMAoGCCqGSM49BAMCMDQxEjAQBgkqhkiG9w0BCQEWA3hAeTENMAsGA1UEChMEQSwgQjEPMA0GA1UEAxMGYnJva2VyMCAXDTI2MTEyMjIxNTcwM1oYDzIxMjYxMDI5MjE1NzAzWjA0MRIwEAYJKoZIhvcNAQkBFgN4QHkxDTALBgNVBAoTBEEsIEIxDzANBgNVBAMTBmJyb2tlcjBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABMeuA6eEZaRrBviEvWwgMcDmsaVroCE8zI1u/tQ8cP6O3xto4rUrm8efQgE7uQLIVcWKMkOytSBIUvFBirCAdBGjITAfMB0GA1UdDgQWBBTOmcn1Hte+cgtNOsA4kD3eiOKOOzAKBggqhkjOPQQDAgNIADBFAiEAz2rR2yzjXbQtcnJ+C0MCJJIvPB2Kzt4XcJNVGnn3qncCIH1U3BSIM0IDrGlL41v774zfmBrfFD20IGwCN+zgSpmiW/XVeRavXCZdI6OfOc0Q8kYRSRY="
)
KEY_STORE_PKCS12 = base64.b64decode(
    "MIIEFgIBAzCCA8AGCSqGSIb3DQEHAaCCA7EEggOtMIIDqTCCASAGCSqGSIb3DQEHAaCCAREEggENMIIBCTCCAQUGCyqGSIb3DQEMCgECoIG9MIG6MGYGCSqGSIb3DQEFDTBZMDgGCSqGSIb3DQEFDDArBBSrvatsuyhC6UANke1qejQTYjlzAwICJxACASAwDAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEED173AD3asFtyOK5HrWR9nIEUGHl90abv1IdkOZD9+LycM/BUjgQkfFILMLa1ulWEQ5MuO+5xpchFlVuRUNwIHPHaUgpB4msVn1JbyIT0E1L5O7gVizgu6F0qEAFR5bSxAqIMTYwEQYJKoZIhvcNAQkUMQQeAgBrMCEGCSqGSIb3DQEJFTEUBBJUaW1lIDE3OTUzODQ2MjQ5ODEwggKBBgkqhkiG9w0BBwagggJyMIICbgIBADCCAmcGCSqGSIb3DQEHATBmBgkqhkiG9w0BBQ0wWTA4BgkqhkiG9w0BBQwwKwQUdVxlW9wmZMd0JvdS5DCSsDdPA10CAicQAgEgMAwGCCqGSIb3DQIJBQAwHQYJYIZIAWUDBAEqBBBrS4zm6vIddygpF9/jHbJfgIIB8GKLuWlanq0YgJLs/4n5m77xgyaqKoZZeGbjA49xrqCkXpWbQJtukRD2sIW8HUdQx2Kc2pCNXoc6NIhkTb2wzhlpFM1ml/Wdo2DkBblTrQcrc7ULBnpl5J8imal4qUPFYcXDHcw/p7OJpxzDuhgV0hL86lsGcRCSC4fG1iPFqbTXHYvgFo06zXW3iSTd2RwKF0gnOaIms9j8m/KBeddy45NkS5zf/qBohUppK5m2qvDTbPdtec0IL0PPOWy72I1r2hy8FOLPMzOED7VIpz9yHrxbORpotKsCN3dthDvpJxUwdKRWM+EsN6Gw+b/LvKDxJhRGjj3WxoR6B8uWHmsST0Kz0axmvAYe2qAUsYNtZEbhn0ytEhkXoAD9rjaZoNYW/E6T907m28S7OgRdCeQ4bs8UxxVNcK4ladTuKH/d0mw2B5aipS0eoxmkTR2ftWD1WosxuUQN1XPY66Q/XvH6Bc+lkRnsO9AE6uYKUKkbOyq2pwfB775Mzmz96b3UDBff67m72+8On1sa+5m5t5AD++wJAytLo0vQDcb+OOPM0jSmy4FxlZRmNr/dtguLR79gg4visDuJBRGwkunB1W6aX7qqNMShp3Ci4o8wUewyxec3Ln3/Rw0/5Yg92ziISCPZ135pP59LpHqR6Ug6NdigqdQwTTAxMA0GCWCGSAFlAwQCAQUABCC6+3KWPQDU0ZGQR2ixikSR7l4gaR3g+7BBEoUXMHJMwAQU3BJaDjRgyHqM0GRsndqpYGpwsogCAicQ"
)
# Made by openssl, with the same password: a key of secp224k1, a curve that `cryptography` has not.
KEY_STORE_OF_ANOTHER_CURVE = base64.b64decode(
    "MIID3AIBAzCCA5IGCSqGSIb3DQEHAaCCA4MEggN/MIIDezCCAkIGCSqGSIb3DQEHBqCCAjMwggIvAgEAMIICKAYJKoZIhvcNAQcBMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAh2Whx+QzaUngICA+gwDAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEA5V1Y6buuAU8dd46QguEB2AggHAWaLhUoI7HN2rRi1CYsDvWfs06i7POUL0XwPJRKrwSaXKn7JqWEZ8/y+NB0Q8kKeZMpQZvmwp04lbBvhAHX03iTmZxyrb19aks8CFVQ5eMEXpJCh4hI6qKwIXjwcADfgdRHyBcBh3ZWAT3c8J5lkxf2d6c2lJdQQiNFRYaeqjcCcbsw2rx5kHTk9+KnBwNxtGgiGbyHuy6kASrRN4REZ7DeTMfeUQAh7R+mjsmIpj7wCPglQhUdb++HKpcPR/n8PCwNg2nVS4YlVt+DC1yDy1JwBNREeRTP90vEhJOncBbw/8ONhRnm5qoBYgBvoL8LSLDkLnkdQTdDY9WU4Y7O8qdXGWwLLgNIdsL7OLTmRvJ7EiaycO4rligdrWMgDecOkLAWiZPC1yvjlTRxKWeU2c7giY9qKMusn0gpvhAWpUXoc2tmcoLlM3U95jhPqkhGRb9L43EQA6MrQdYrhMxVJIHc5XDEH+objTWkernG4a540rkvDzDpNJ78eVs2dqpXTG0oL+zVCkfKlKc9F9m2jgALWSx0/R/r5FN0yjN7XX513a57h0QgBMmWwCY58+6YOzJ2q4PaTOo0/t880bWlFytzCCATEGCSqGSIb3DQEHAaCCASIEggEeMIIBGjCCARYGCyqGSIb3DQEMCgECoIHfMIHcMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjRuMI/wSgkdAICA+gwDAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEDsh+7iv4sNmDL9TVgNGMQoEgYCFT73NSvXctaI0VcCFlHZAcw//1jwIPEd6c8nYhzwIxVt5Rhl1/umghDCmhmFqstMb+c2eCWEhAReebALcucMtZ9w4dynPN3KIJTivlChwFQc8JacRgxSUCqfaQSGx2Gvkx1cnpYx+usvm8yAsP1FCOfbe0xCLZkJToXfkeV1DkDElMCMGCSqGSIb3DQEJFTEWBBSHAKwrou8XoUiZjHiCWXe4yzXXQjBBMDEwDQYJYIZIAWUDBAIBBQAEIKv+Oji5xNdWE0c+JiG41Vn1HcJH1NSzKISf6T85X4XwBAj4zS+amJzdaQICA+g="
)
SUBJECT = r"CN=broker,O=A\, B,1.2.840.113549.1.9.1=#1603784079"


def pkcs8(cert: trustme.LeafCert, password: str | None = None) -> bytes:
    """The key as Kafka's PEM stores have it."""
    key = load_pem_private_key(cert.private_key_pem.bytes(), None)
    hidden = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden)


def chain(cert: trustme.LeafCert) -> bytes:
    return b"".join(one.bytes() for one in cert.cert_chain_pems)


class Authority:
    """A throw-away certificate authority that writes stores into a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self.ca = trustme.CA()
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self.ca.cert_pem.bytes())

    def key_store(self, file: str, *names: str, common_name: str | None = None) -> Path:
        cert = self.ca.issue_cert(
            *(names or ("localhost", "127.0.0.1")),
            common_name=common_name,
            organization_unit_name="tests",
        )
        path = self.directory / file
        path.write_bytes(pkcs8(cert) + chain(cert))
        path.chmod(0o600)
        return path

    def tls_keys(self, key_store: Path) -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(key_store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.file),
        }


def nobody(_mechanism: str, _user: str) -> ScramCredential | None:
    return None


def no_token(_mechanism: str, _id: str) -> TokenCredential | None:
    return None


def secured(
    protocol: str,
    keys: dict[str, str],
    credentials: Callable[[str, str], ScramCredential | None] = nobody,
    name: str = "EXT",
    tokens: Callable[[str, str], TokenCredential | None] = no_token,
) -> SecuredListener:
    config = KafkaConfig(keys)
    return SecuredListener(config, Listener(name, "127.0.0.1", 0, protocol), credentials, tokens)
