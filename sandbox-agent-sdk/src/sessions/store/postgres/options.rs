//! Options of a database connection.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use sqlx::Executor as _;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgSslMode};

use super::super::StoreError;
use super::super::rows::failure;
use crate::client::secret::Secret;

/// How much longer than the database's own limit a call waits for a response.
const GRACE: Duration = Duration::from_secs(2);
/// The longest time that the database knows, in milliseconds.
const LONGEST: u128 = i32::MAX as u128;

/// Whether the connection to the database is encrypted, and what is verified.
///
/// | mode | encrypted | protects against eavesdropping | protects against a man in the middle |
/// |---|---|---|---|
/// | [`Off`](Self::Off) | never | no | no |
/// | [`Prefer`](Self::Prefer), the default | if the server offers it | no: an attacker can turn it off | no |
/// | [`Require`](Self::Require) | always | yes | no: every certificate is accepted |
/// | [`VerifyAuthority`](Self::VerifyAuthority) | always | yes | yes |
/// | [`VerifyFull`](Self::VerifyFull) | always | yes | yes |
///
/// Use [`VerifyFull`](Self::VerifyFull) if the database is on another machine: the password and all stored data pass
/// over this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostgresTls {
    /// Never encrypts.
    Off,
    /// Encrypts if the server offers it; verifies nothing.
    Prefer,
    /// Always encrypts; verifies nothing.
    Require,
    /// Always encrypts. The certificate must come from a trusted authority. `sqlx` 0.8 also requires that it is for
    /// this server, which is stricter than this mode ([sqlx#3793](https://github.com/launchbadge/sqlx/issues/3793)).
    VerifyAuthority,
    /// Always encrypts. The certificate must come from a trusted authority and be for this server.
    VerifyFull,
}

/// Options for connecting to a database.
#[derive(Clone)]
#[must_use = "options do nothing until a store is opened with them"]
pub struct PostgresOptions {
    url: Secret,
    tls: Option<PostgresTls>,
    authority: Option<PathBuf>,
    max_connections: u32,
    min_connections: u32,
    acquire_timeout: Duration,
    idle_timeout: Option<Duration>,
    statement_timeout: Option<Duration>,
}

impl PostgresOptions {
    /// Creates options for the database at this URL, with up to 8 connections.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into().into(),
            tls: None,
            authority: None,
            max_connections: 8,
            min_connections: 0,
            acquire_timeout: Duration::from_secs(10),
            idle_timeout: Some(Duration::from_secs(600)),
            statement_timeout: Some(Duration::from_secs(30)),
        }
    }

    /// How long a call waits for the database.
    pub(super) fn response_limit(&self) -> Option<Duration> {
        self.statement_timeout.map(|timeout| timeout.saturating_add(GRACE))
    }

    pub(super) async fn connect(&self) -> Result<PgPool, StoreError> {
        // The driver uses the provider of the process for its verifiers, and panics if several are compiled in and the
        // program has chosen none. A choice of the program stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut connect: PgConnectOptions = self.url.expose().parse().map_err(|error| match error {
            // The error may quote the URL, which may hold a password.
            sqlx::Error::Configuration(_) => {
                StoreError::Invalid("the URL is not a valid database URL".to_owned())
            }
            error => failure(error),
        })?;
        if let Some(tls) = self.tls {
            connect = connect.ssl_mode(match tls {
                PostgresTls::Off => PgSslMode::Disable,
                PostgresTls::Prefer => PgSslMode::Prefer,
                PostgresTls::Require => PgSslMode::Require,
                PostgresTls::VerifyAuthority => PgSslMode::VerifyCa,
                PostgresTls::VerifyFull => PgSslMode::VerifyFull,
            });
        }
        if let Some(authority) = &self.authority {
            connect = connect.ssl_root_cert(authority);
        }
        let set = self.statement_timeout.map(|timeout| {
            // Zero would mean no limit.
            let millis = timeout.as_millis().clamp(1, LONGEST);
            format!("SET statement_timeout = {millis}; SET idle_in_transaction_session_timeout = {millis}")
        });
        PgPoolOptions::new()
            .after_connect(move |connection, _| {
                let set = set.clone();
                Box::pin(async move {
                    match set {
                        Some(set) => connection.execute(sqlx::raw_sql(&set)).await.map(drop),
                        None => Ok(()),
                    }
                })
            })
            .max_connections(self.max_connections)
            .min_connections(self.min_connections)
            .acquire_timeout(self.acquire_timeout)
            .idle_timeout(self.idle_timeout)
            .connect_with(connect)
            .await
            .map_err(failure)
    }
}

setters! { PostgresOptions:
    /// Sets whether the connection is encrypted. The default is the `sslmode` of the URL, or [`PostgresTls::Prefer`].
    tls(tls: PostgresTls) => tls = Some(tls);
    /// Trusts the certificate authority in this file instead of those of the platform.
    authority(file: impl Into<PathBuf>) => authority = Some(file.into());
    /// Sets the maximum number of connections; at least one. Default 8.
    max_connections(connections: u32) => max_connections = connections.max(1);
    /// Sets how many idle connections stay open. Default 0.
    min_connections(connections: u32) => min_connections = connections;
    /// Sets how long to wait for a free connection. Default 10 s.
    acquire_timeout(timeout: Duration) => acquire_timeout = timeout;
    /// Sets how long a connection may be idle before it is closed; `None` for no limit. Default 10 minutes.
    idle_timeout(timeout: Option<Duration>) => idle_timeout = timeout;
    /// Sets how long one statement may take, including waiting for locks; `None` for no limit. Default 30 s.
    ///
    /// The database cancels a statement that takes longer, and a transaction that is idle for that long. A connection
    /// that does not respond within two more seconds is closed. All of these cause [`StoreError::Unavailable`].
    /// Migrations have no limit.
    statement_timeout(timeout: Option<Duration>) => statement_timeout = timeout;
}

/// The URL may hold a password, and is left out.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("tls", &self.tls)
            .field("max_connections", &self.max_connections)
            .field("statement_timeout", &self.statement_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::PostgresOptions;
    use crate::sessions::store::StoreError;

    #[tokio::test]
    async fn a_bad_url_is_refused_without_showing_its_password() {
        for url in ["", "postgres://u:hush@h:notaport/db", "hush", "http://u:hush@h/db\0"] {
            let options = PostgresOptions::new(url);
            assert!(!format!("{options:?}").contains("hush"));
            let error =
                options.acquire_timeout(std::time::Duration::from_millis(200)).connect().await.unwrap_err();
            assert!(!format!("{error:?}").contains("hush"), "{error:?}");
            assert!(matches!(error, StoreError::Invalid(_) | StoreError::Unavailable(_)), "{error:?}");
        }
    }
}
