"""Keys and certificates of one cluster, made with openssl."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

_DAYS = "3650"
# The host's own openssl.cnf would add extensions of its choice.
_CONFIG = "[req]\ndistinguished_name=dn\n[dn]\n"


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path) -> None:
        """Make the authority's own key and certificate in `folder`."""
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._folder = folder
        self.certificate = folder / "ca.crt"
        self.key = folder / "ca.key"
        self._config = folder / "openssl.cnf"
        self._config.write_text(_CONFIG, encoding="utf-8")
        self._request(
            *(*_new_key(self.key), "-subj", "/CN=localcluster", "-out", str(self.certificate)),
            *("-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def issue(
        self, name: str, subject: str, hosts: Sequence[str] = (), folder: Path | None = None
    ) -> tuple[Path, Path]:
        """Make a certificate for a server of `hosts` (DNS names and addresses), or a client.

        Args:
            name: File name, without ending.
            subject: Such as `/O=system:masters/CN=admin`.
            hosts: Names and addresses a server is called by.
            folder: Where to write, the authority's own folder if not given.

        Returns:
            The certificate's and the key's path.
        """
        target = folder or self._folder
        target.mkdir(parents=True, mode=0o700, exist_ok=True)
        certificate, key = target / f"{name}.crt", target / f"{name}.key"
        names = ",".join(f"{'IP' if _is_address(host) else 'DNS'}:{host}" for host in hosts)
        extensions = ["-addext", f"subjectAltName={names}"] if hosts else []
        self._request(
            *("-CA", str(self.certificate), "-CAkey", str(self.key)),
            *(*_new_key(key), "-subj", subject, "-out", str(certificate)),
            *("-addext", "basicConstraints=critical,CA:FALSE", *extensions),
        )
        return certificate, key

    def _request(self, *arguments: str) -> None:
        _openssl("req", "-x509", "-config", str(self._config), "-days", _DAYS, *arguments)


def signing_key(path: Path) -> Path:
    """Make the key that signs service account tokens."""
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(path))
    return path


def _is_address(host: str) -> bool:
    return host.replace(".", "").isdigit()


def _new_key(path: Path) -> list[str]:
    # Elliptic curves: an RSA key takes up to a second to find on a busy core.
    return [
        *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-nodes", "-keyout", str(path)),
    ]


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
