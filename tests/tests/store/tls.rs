//! Encrypted connections to a database, and what is checked of them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use sandbox_agent_sdk::sessions::store::{
    PostgresOptions, PostgresStore, PostgresTls, SessionStore as _, StoreError,
};
use sdk_tests::Cluster;
use tempfile::TempDir;

/// How keys are made.
const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// A certificate authority.
struct Authority {
    directory: TempDir,
}

impl Authority {
    /// Without a program to make them with there is none, which fails if `CI` is set.
    fn new() -> Option<Self> {
        let authority = Self { directory: tempfile::tempdir().unwrap() };
        if Command::new("openssl").arg("version").output().is_err() {
            assert!(std::env::var_os("CI").is_none(), "there is no openssl to make a certificate with");
            eprintln!("NOT TESTED: there is no openssl to make a certificate with");
            return None;
        }
        authority.openssl(&format!("req -x509 {KEY} -days 2 -subj /CN=authority -keyout ca.key -out ca.crt"));
        Some(authority)
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        let done = command.args(arguments.split(' ')).current_dir(self.directory.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// A server whose certificate is for these names.
    async fn server(&self, names: &str) -> Option<Cluster> {
        std::fs::write(self.directory.path().join("names"), format!("subjectAltName={names}")).unwrap();
        self.openssl(&format!("req {KEY} -subj /CN=server -keyout server.key -out server.csr"));
        self.openssl(
            "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt",
        );
        let read = |name: &str| std::fs::read_to_string(self.directory.path().join(name)).unwrap();
        let (key, certificate) = (read("server.key"), read("server.crt"));
        let files = [("server.key", key.as_str()), ("server.crt", certificate.as_str())];
        Cluster::start_with(&files, &["ssl=on"]).await
    }

    /// The certificate that makes its others good.
    fn certificate(&self) -> PathBuf {
        self.directory.path().join("ca.crt")
    }
}

fn options(cluster: &Cluster, tls: PostgresTls) -> PostgresOptions {
    PostgresOptions::new(cluster.url()).tls(tls).acquire_timeout(Duration::from_secs(5))
}

async fn opens(options: PostgresOptions) {
    let store = PostgresStore::open_with(options.clone()).await;
    store.unwrap_or_else(|error| panic!("{options:?}: {error:?}")).close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_used_as_the_mode_says_and_certificates_are_verified() {
    let Some(authority) = Authority::new() else { return };
    let Some(cluster) = authority.server("DNS:localhost,IP:127.0.0.1").await else { return };
    let trusted = authority.certificate();
    for good in [
        options(&cluster, PostgresTls::Off),
        options(&cluster, PostgresTls::Prefer),
        options(&cluster, PostgresTls::Require),
        options(&cluster, PostgresTls::VerifyFull).authority(&trusted),
        options(&cluster, PostgresTls::VerifyAuthority).authority(&trusted),
    ] {
        opens(good).await;
    }
    // A certificate of an authority that the platform does not trust is refused.
    for tls in [PostgresTls::VerifyFull, PostgresTls::VerifyAuthority] {
        let refused = PostgresStore::open_with(options(&cluster, tls)).await;
        assert!(refused.is_err(), "a certificate of its own making was trusted");
    }
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
    // A server without TLS cannot be talked into it.
    let Some(plain) = Cluster::find().await else { return };
    if std::env::var_os("DATABASE_URL").is_none() {
        let error = PostgresStore::open_with(options(&plain, PostgresTls::Require)).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_another_server_is_refused() {
    let Some(authority) = Authority::new() else { return };
    let Some(cluster) = authority.server("DNS:elsewhere.example,IP:192.0.2.1").await else { return };
    let trusted = authority.certificate();
    opens(options(&cluster, PostgresTls::Require)).await;
    // Where only the authority is checked, this one is good. The driver refuses it all the same, as the documentation of
    // the option says; if it no longer does, that has to be mended.
    for tls in [PostgresTls::VerifyFull, PostgresTls::VerifyAuthority] {
        let refused = options(&cluster, tls).authority(&trusted);
        let error = PostgresStore::open_with(refused).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert!(format!("{error:?}").contains("NotValidForName"), "{error:?}");
    }
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
}
