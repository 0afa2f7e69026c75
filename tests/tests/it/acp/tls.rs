//! TLS: which certificates a client trusts, and HTTP/2 where the server offers it.

use std::sync::{Arc, Mutex};

use acp_http_client::{
    AcpHttpClient, AcpHttpClientBuilder, Dialect, Error, ReconnectPolicy, http_client_builder,
    http_client_builder_trusting,
};
use mock_server::MockServer;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sdk_tests::{acp_server, handshake, numbered, prompt, session, texts, within};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

type Agreed = Arc<Mutex<Vec<Option<Vec<u8>>>>>;

/// A server behind TLS: what arrives is decrypted and passed on to the mock server byte by byte.
struct Secured {
    server: MockServer,
    url: String,
    /// The certificate of the authority that vouches for it.
    root: String,
    /// What was agreed on with each connection.
    agreed: Agreed,
    proxy: tokio::task::JoinHandle<()>,
}

impl Drop for Secured {
    fn drop(&mut self) {
        self.proxy.abort();
    }
}

impl Secured {
    /// Starts it with these protocols on offer, and with a certificate for this name.
    async fn start(offered: &[&[u8]], name: &str) -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = offered.iter().map(|protocol| protocol.to_vec()).collect();
        let server = acp_server(|_| numbered(100)).start().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let behind = server.url().strip_prefix("http://").unwrap().to_owned();
        let (agreed, acceptor) = (Agreed::default(), TlsAcceptor::from(Arc::new(config)));
        let proxy = tokio::spawn(proxy(listener, acceptor, behind, agreed.clone()));
        Self { server, url, root: authority.pem(), agreed, proxy }
    }

    fn client(&self, http: reqwest::ClientBuilder) -> AcpHttpClientBuilder {
        AcpHttpClient::builder(&self.url)
            .http_client(http.build().unwrap())
            .reconnect(ReconnectPolicy::default().max_attempts(1))
    }

    fn trusting(&self) -> AcpHttpClientBuilder {
        self.client(http_client_builder_trusting(self.root.as_bytes()).unwrap())
    }
}

async fn proxy(listener: TcpListener, acceptor: TlsAcceptor, behind: String, agreed: Agreed) {
    while let Ok((socket, _)) = listener.accept().await {
        let (acceptor, behind, agreed) = (acceptor.clone(), behind.clone(), agreed.clone());
        tokio::spawn(async move {
            // A client that does not trust the certificate hangs up here.
            let Ok(mut secured) = acceptor.accept(socket).await else { return };
            let protocol = secured.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
            agreed.lock().unwrap().push(protocol);
            let mut plain = TcpStream::connect(behind).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut secured, &mut plain).await;
        });
    }
}

#[tokio::test]
async fn whole_sessions_run_over_tls_and_http2_is_used_where_it_is_offered() {
    for (offered, expected) in
        [(&[HTTP2, HTTP1][..], Some(HTTP2)), (&[HTTP2], Some(HTTP2)), (&[HTTP1], Some(HTTP1)), (&[], None)]
    {
        let secured = Secured::start(offered, "127.0.0.1").await;
        for profile in [Dialect::RPC, Dialect::OFFICIAL] {
            let client = secured.trusting().dialect(profile.clone()).build().unwrap();
            let mut events = client.events();
            let id = session(&client).await;
            within("a turn", prompt(&client, &id, "go")).await.unwrap();
            let numbers: Vec<_> = (0..100).map(|number| number.to_string()).collect();
            assert_eq!(texts(&mut events), numbers, "{expected:?} {profile:?}");
            within("close", client.close()).await;
        }
        let agreed = secured.agreed.lock().unwrap();
        assert!(
            !agreed.is_empty() && agreed.iter().all(|protocol| protocol.as_deref() == expected),
            "{agreed:?}"
        );
    }
}

#[tokio::test]
async fn a_server_with_an_untrusted_certificate_gets_no_request() {
    let secured = Secured::start(&[HTTP2, HTTP1], "127.0.0.1").await;
    let stranger = Secured::start(&[HTTP2, HTTP1], "127.0.0.1").await;
    let elsewhere = Secured::start(&[HTTP2, HTTP1], "somewhere.test").await;
    for (server, client) in [
        (&secured, secured.client(http_client_builder())),
        (&secured, secured.client(http_client_builder_trusting(stranger.root.as_bytes()).unwrap())),
        (&elsewhere, elsewhere.trusting()),
    ] {
        let client = client.token("secret").build().unwrap();
        let error = within("the refusal", handshake(&client)).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
        assert!(!error.maybe_executed());
        assert!(server.server.requests().is_empty());
    }
}

#[tokio::test]
async fn another_user_of_reqwest_in_the_same_program_needs_no_provider() {
    let secured = Secured::start(&[HTTP2, HTTP1], "127.0.0.1").await;
    // It panics if rustls is there without a default provider. Both providers are compiled into this program.
    let plain = reqwest::Client::new();
    let health = plain.get(format!("{}/v1/health", secured.server.url()));
    assert!(within("plain HTTP", health.send()).await.unwrap().status().is_success());
    let root = reqwest::Certificate::from_pem(secured.root.as_bytes()).unwrap();
    let other = reqwest::Client::builder().tls_certs_merge([root]).build().unwrap();
    let health = other.get(format!("{}/v1/health", secured.url));
    assert!(within("TLS", health.send()).await.unwrap().status().is_success());
    let client = secured.trusting().build().unwrap();
    within("our client", handshake(&client)).await.unwrap();
    assert!(
        tokio_rustls::rustls::crypto::CryptoProvider::get_default().is_none(),
        "no provider was installed for the process"
    );
}
