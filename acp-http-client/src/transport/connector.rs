//! How HTTP clients reach a server: TLS, whom they trust, keep-alive.

use std::time::Duration;

use url::Url;

use crate::{Error, Timeouts};

/// A peer that went away without a word is found out within this time and half of it again.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The HTTP client that is used unless the program brings its own.
pub(crate) fn default_client(
    timeouts: &Timeouts,
    endpoint: &Url,
    http2_prior_knowledge: bool,
) -> Result<reqwest::Client, Error> {
    let mut builder = http_client_builder().connect_timeout(timeouts.connect);
    if http2_prior_knowledge {
        builder = builder.http2_prior_knowledge();
    }
    if cfg!(not(any(feature = "rustls-tls", feature = "native-tls"))) && endpoint.scheme() == "https" {
        return Err(Error::Config("https needs the feature `rustls-tls` or `native-tls`".to_owned()));
    }
    builder.build().map_err(|error| Error::Config(format!("the HTTP client cannot be made: {error}")))
}

/// What this crate's own HTTP client is made with: TLS as the features say, no redirects.
///
/// Start from it when you bring a client of your own. With the feature `rustls-tls`, `reqwest` has rustls but no
/// cryptography provider of its own, so that `reqwest::Client::new()` panics unless your program chose one; this
/// builder brings ring along and installs nothing for the whole process. Its TLS is set up already: certificates
/// that are added to it are not seen, so take [`http_client_builder_trusting`] for those.
pub fn http_client_builder() -> reqwest::ClientBuilder {
    tls::platform(plain_builder())
}

/// As [`http_client_builder`], and trusts the certificates in this PEM text too: those of a company's own authority,
/// say.
///
/// # Errors
/// [`Error::Config`] if there is no certificate in the text, or one that cannot be read.
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

fn unusable(reason: impl std::fmt::Display) -> Error {
    Error::Config(format!("the certificates to trust cannot be used: {reason}"))
}

/// rustls with ring: it builds in seconds, and no process-wide provider is installed or needed.
#[cfg(feature = "rustls-tls")]
mod tls {
    use std::sync::{Arc, OnceLock};

    use reqwest::ClientBuilder;
    use rustls::{
        ClientConfig, RootCertStore,
        pki_types::{CertificateDer, pem::PemObject},
    };
    use rustls_platform_verifier::Verifier;

    use super::{Error, unusable};

    pub(super) fn platform(builder: ClientBuilder) -> ClientBuilder {
        // Reading the platform's certificates takes longer than everything else a client does at its start.
        static TLS: OnceLock<Option<ClientConfig>> = OnceLock::new();
        let config = TLS.get_or_init(|| {
            let trusting_nobody = |error: rustls::Error| {
                // A machine without certificates can still talk plain HTTP.
                tracing::warn!(%error, "the certificates of the platform cannot be read");
                let config = versions()?.with_root_certificates(RootCertStore::empty());
                Ok::<_, rustls::Error>(finished(config))
            };
            config([]).or_else(trusting_nobody).ok()
        });
        match config {
            Some(config) => builder.tls_backend_preconfigured(config.clone()),
            // ring offers the default protocol versions, so this is not reached; reqwest would say what is missing.
            None => builder,
        }
    }

    pub(super) fn trusting(builder: ClientBuilder, pem: &[u8]) -> Result<ClientBuilder, Error> {
        let roots: Vec<_> =
            CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(unusable)?;
        if roots.is_empty() {
            return Err(unusable("there is none in the text"));
        }
        // The verifier passes over what it cannot read; here it is said.
        let mut store = RootCertStore::empty();
        for root in &roots {
            store.add(root.clone()).map_err(unusable)?;
        }
        Ok(builder.tls_backend_preconfigured(config(roots).map_err(unusable)?))
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
        let provider = Arc::new(rustls::crypto::ring::default_provider());
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

    use super::{Error, unusable};

    pub(super) fn platform(builder: ClientBuilder) -> ClientBuilder {
        builder
    }

    pub(super) fn trusting(builder: ClientBuilder, pem: &[u8]) -> Result<ClientBuilder, Error> {
        let roots = Certificate::from_pem_bundle(pem).map_err(unusable)?;
        if roots.is_empty() {
            return Err(unusable("there is none in the text"));
        }
        Ok(builder.tls_certs_merge(roots))
    }
}

#[cfg(not(any(feature = "rustls-tls", feature = "native-tls")))]
mod tls {
    use reqwest::ClientBuilder;

    use super::{Error, unusable};

    pub(super) fn platform(builder: ClientBuilder) -> ClientBuilder {
        builder
    }

    pub(super) fn trusting(_builder: ClientBuilder, _pem: &[u8]) -> Result<ClientBuilder, Error> {
        Err(unusable("that needs the feature `rustls-tls` or `native-tls`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_that_cannot_be_used_are_a_typed_error() {
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for pem in ["", "no certificate", broken, "-----BEGIN CERTIFICATE-----\n"] {
            let error = http_client_builder_trusting(pem.as_bytes()).expect_err(pem);
            assert!(matches!(error, Error::Config(_)), "{error:?}");
        }
    }
}
