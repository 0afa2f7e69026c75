//! How HTTP clients are built: TLS, trusted certificates, keep-alive.

use std::time::Duration;

use url::{Host, Url};

use crate::{Error, Timeouts};

/// The interval of keep-alive probes. A peer that is gone is detected after this time and half of it again.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The HTTP client that is used unless the application passes its own.
pub(crate) fn default_client(
    timeouts: &Timeouts,
    endpoint: &Url,
    http2_prior_knowledge: bool,
) -> Result<reqwest::Client, Error> {
    let mut builder = http_client_builder().connect_timeout(timeouts.connect);
    // A proxy would see the token, and `HTTP_PROXY` applies to loopback addresses unless `NO_PROXY` names them.
    if is_loopback(endpoint) {
        builder = builder.no_proxy();
    }
    if http2_prior_knowledge {
        builder = builder.http2_prior_knowledge();
    }
    if cfg!(not(any(feature = "rustls-tls", feature = "native-tls"))) && endpoint.scheme() == "https" {
        return Err(Error::Config("https needs the feature `rustls-tls` or `native-tls`".to_owned()));
    }
    builder.build().map_err(|error| Error::Config(format!("the HTTP client cannot be built: {error}")))
}

/// Returns whether a URL names the loopback interface of this machine. The default HTTP client uses no proxy for it.
///
/// The unspecified addresses `0.0.0.0` and `::` count as loopback addresses, because connections to them stay on this
/// machine.
#[must_use]
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback() || address.is_unspecified(),
        Some(Host::Ipv6(address)) => {
            let address = address.to_canonical();
            address.is_loopback() || address.is_unspecified()
        }
        Some(Host::Domain(name)) => name.trim_end_matches('.').eq_ignore_ascii_case("localhost"),
        None => false,
    }
}

/// Returns a builder with the settings of this crate's own HTTP client.
///
/// TLS is configured as selected by the features, and redirects are not followed. Use the builder to build your own
/// HTTP client. It changes no process-wide setting. TLS is already configured, so certificates that you add to the
/// builder are ignored; use [`http_client_builder_trusting`] to add certificates.
pub fn http_client_builder() -> reqwest::ClientBuilder {
    tls::platform(plain_builder())
}

/// Like [`http_client_builder`], and also trusts the certificates in this PEM text, such as a private authority.
///
/// # Errors
/// [`Error::Config`] if the text contains no certificate or an invalid one.
pub fn http_client_builder_trusting(pem: &[u8]) -> Result<reqwest::ClientBuilder, Error> {
    tls::trusting(plain_builder(), pem)
}

fn plain_builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .tcp_keepalive(KEEP_ALIVE)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .http2_keep_alive_timeout(KEEP_ALIVE / 2)
        .http2_keep_alive_while_idle(true)
        .http2_adaptive_window(true)
}

fn invalid(reason: impl std::fmt::Display) -> Error {
    Error::Config(format!("the certificates to trust are invalid: {reason}"))
}

/// rustls with the provider that is the default of rustls and of reqwest. Other users of either in the same process
/// keep their defaults, and no process-wide provider is installed or needed.
#[cfg(feature = "rustls-tls")]
mod tls {
    use std::sync::{Arc, OnceLock};

    use reqwest::ClientBuilder;
    use rustls::{
        ClientConfig, RootCertStore,
        pki_types::{CertificateDer, pem::PemObject},
    };
    use rustls_platform_verifier::Verifier;

    use super::{Error, invalid};

    pub(super) fn platform(builder: ClientBuilder) -> ClientBuilder {
        // Reading the certificates of the platform is the slowest part of building a client.
        static TLS: OnceLock<Option<ClientConfig>> = OnceLock::new();
        let config = TLS.get_or_init(|| {
            let without_roots = |error: rustls::Error| {
                // A machine without certificates can still use plain HTTP.
                tracing::warn!(%error, "reading the certificates of the platform failed");
                let config = versions()?.with_root_certificates(RootCertStore::empty());
                Ok::<_, rustls::Error>(finished(config))
            };
            config([]).or_else(without_roots).ok()
        });
        match config {
            Some(config) => builder.tls_backend_preconfigured(config.clone()),
            // The provider supports the default protocol versions, so this is not reached.
            None => builder,
        }
    }

    pub(super) fn trusting(builder: ClientBuilder, pem: &[u8]) -> Result<ClientBuilder, Error> {
        let roots: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(invalid)?;
        if roots.is_empty() {
            return Err(invalid("the text contains no certificate"));
        }
        // The verifier ignores invalid certificates; here they are an error.
        let mut store = RootCertStore::empty();
        for root in &roots {
            store.add(root.clone()).map_err(invalid)?;
        }
        Ok(builder.tls_backend_preconfigured(config(roots).map_err(invalid)?))
    }

    fn config(
        roots: impl IntoIterator<Item = CertificateDer<'static>>,
    ) -> Result<ClientConfig, rustls::Error> {
        let versions = versions()?;
        let verifier = Verifier::new_with_extra_roots(roots, versions.crypto_provider().clone())?;
        Ok(finished(versions.dangerous().with_custom_certificate_verifier(Arc::new(verifier))))
    }

    type Builder<State> = rustls::ConfigBuilder<ClientConfig, State>;

    fn versions() -> Result<Builder<rustls::WantsVerifier>, rustls::Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
    }

    fn finished(config: Builder<rustls::client::WantsClientCert>) -> ClientConfig {
        let mut config = config.with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }
}

#[cfg(all(feature = "native-tls", not(feature = "rustls-tls")))]
mod tls {
    use reqwest::{Certificate, ClientBuilder};

    use super::{Error, invalid};

    pub(super) fn platform(builder: ClientBuilder) -> ClientBuilder {
        builder
    }

    pub(super) fn trusting(builder: ClientBuilder, pem: &[u8]) -> Result<ClientBuilder, Error> {
        let roots = Certificate::from_pem_bundle(pem).map_err(invalid)?;
        if roots.is_empty() {
            return Err(invalid("the text contains no certificate"));
        }
        Ok(builder.tls_certs_merge(roots))
    }
}

#[cfg(not(any(feature = "rustls-tls", feature = "native-tls")))]
mod tls {
    use reqwest::ClientBuilder;

    use super::{Error, invalid};

    pub(super) fn platform(builder: ClientBuilder) -> ClientBuilder {
        builder
    }

    pub(super) fn trusting(_builder: ClientBuilder, _pem: &[u8]) -> Result<ClientBuilder, Error> {
        Err(invalid("TLS needs the feature `rustls-tls` or `native-tls`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_certificates_are_a_typed_error() {
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for pem in ["", "no certificate", broken, "-----BEGIN CERTIFICATE-----\n"] {
            let error = http_client_builder_trusting(pem.as_bytes()).expect_err(pem);
            assert!(matches!(error, Error::Config(_)), "{error:?}");
        }
    }

    #[test]
    fn a_loopback_host_is_recognised_by_its_address() {
        let loopback = [
            "http://127.0.0.1:2468",
            "http://127.9.9.9",
            "http://[::1]:1",
            "http://[::ffff:127.0.0.1]",
            "http://localhost",
            "http://LOCALHOST.:7",
            "http://2130706433",
            "http://0.0.0.0:8000",
            "http://[::]",
        ];
        let others = [
            "http://10.0.0.1",
            "http://127.0.0.1.example.com",
            "http://localhost.example.com",
            "http://notlocalhost",
            "http://[::2]",
        ];
        for url in loopback {
            assert!(is_loopback(&Url::parse(url).unwrap()), "{url}");
        }
        for url in others {
            assert!(!is_loopback(&Url::parse(url).unwrap()), "{url}");
        }
    }
}
