//! An HTTP client for tests, which works with any set of enabled features.

use std::sync::Once;

/// Returns a builder for a client without a proxy. If reqwest is built with rustls and without a default provider,
/// a provider must be installed, even for plain HTTP.
pub(crate) fn builder() -> reqwest::ClientBuilder {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // An error means that a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    reqwest::Client::builder().no_proxy()
}
