//! An HTTP client for tests, whatever else is built beside them.

use std::sync::Once;

/// A client that goes through no proxy. In a build with rustls but without a provider of its own, reqwest wants one
/// to be installed, even for plain HTTP.
pub(crate) fn builder() -> reqwest::ClientBuilder {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // If there is one already, it will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    reqwest::Client::builder().no_proxy()
}
