//! Bearer tokens and token providers.

use std::{error::Error as StdError, fmt, future::Future, pin::Pin, sync::Arc};

use http::HeaderValue;
use zeroize::Zeroizing;

use crate::{Error, tap::catch_async};

/// A bearer token. It is never part of `Debug` output, errors or traces, and its memory is overwritten on drop.
#[derive(Clone)]
pub struct Token(Arc<Zeroizing<String>>);

/// The prefix of a token in the `Authorization` header.
const SCHEME: &str = "Bearer ";

impl Token {
    /// Creates a token from text, with or without the prefix `Bearer`.
    ///
    /// # Errors
    /// [`Error::Config`] if the token is empty or contains characters that are invalid in a header.
    pub fn new(token: impl AsRef<str>) -> Result<Self, Error> {
        let token = token.as_ref().trim();
        let bare = match token.split_once(char::is_whitespace).unwrap_or((token, "")) {
            (scheme, rest) if scheme.eq_ignore_ascii_case("bearer") => rest.trim_start(),
            _ => token,
        };
        if bare.is_empty() {
            return Err(Error::Config("the token is empty".to_owned()));
        }
        // Visible ASCII characters, tabs and bytes above, as in `HeaderValue`.
        if !bare.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f)) {
            let invalid = "the token contains characters that are invalid in a header";
            return Err(Error::Config(invalid.to_owned()));
        }
        // A string that grows would leave copies behind.
        let mut value = Zeroizing::new(String::with_capacity(SCHEME.len() + bare.len()));
        value.push_str(SCHEME);
        value.push_str(bare);
        Ok(Self(Arc::new(value)))
    }

    /// Returns the value of the `Authorization` header, marked as sensitive. It is a copy, which is not overwritten.
    pub fn authorization(&self) -> HeaderValue {
        // It was checked before. Without a token the server refuses the request.
        let value = HeaderValue::from_str(&self.0);
        let mut value = value.unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why a token is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenUse {
    /// A request is about to be sent. A cached token is fine.
    Request,
    /// The server rejected the last token. A new one is needed.
    Refresh,
}

/// The error of a token provider.
pub type TokenError = Box<dyn StdError + Send + Sync>;

/// Provides a token for each request.
///
/// The client calls it before every POST, GET and DELETE, and once more with [`TokenUse::Refresh`] if the server
/// responds with 401. A second 401 is final. Cache the token in the provider if it is expensive to obtain. A provider
/// that panics fails the request with [`Error::Token`].
pub trait TokenProvider: Send + Sync + 'static {
    /// Returns the token to send.
    fn token(&self, reason: TokenUse) -> impl Future<Output = Result<Token, TokenError>> + Send;
}

/// A closure that takes the reason is a provider.
impl<F, R> TokenProvider for F
where
    F: Fn(TokenUse) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Token, TokenError>> + Send,
{
    fn token(&self, reason: TokenUse) -> impl Future<Output = Result<Token, TokenError>> + Send {
        self(reason)
    }
}

type TokenFuture<'a> = Pin<Box<dyn Future<Output = Result<Token, TokenError>> + Send + 'a>>;

/// [`TokenProvider`] behind a pointer.
pub(crate) trait AnyTokenProvider: Send + Sync {
    fn token(&self, reason: TokenUse) -> TokenFuture<'_>;
}

impl<P: TokenProvider> AnyTokenProvider for P {
    fn token(&self, reason: TokenUse) -> TokenFuture<'_> {
        Box::pin(TokenProvider::token(self, reason))
    }
}

/// The cause of [`Error::Token`] when a provider panics.
#[derive(Debug, thiserror::Error)]
#[error("the token provider panicked")]
struct ProviderPanicked;

/// How requests are authorised. A connection and the layers above it can share this value.
#[derive(Clone, Default)]
pub struct Auth(Kind);

#[derive(Clone, Default)]
enum Kind {
    #[default]
    None,
    Fixed(Token),
    Provider(Arc<dyn AnyTokenProvider>),
}

impl Auth {
    /// Sends no token.
    pub fn none() -> Self {
        Self::default()
    }

    /// Sends the same token with every request.
    pub fn token(token: Token) -> Self {
        Self(Kind::Fixed(token))
    }

    /// Sends a token from the provider with every request.
    pub fn provider(provider: impl TokenProvider) -> Self {
        Self(Kind::Provider(Arc::new(provider)))
    }

    /// Returns the value of the `Authorization` header for the next request.
    ///
    /// # Errors
    /// [`Error::Token`] if the provider fails or panics.
    pub async fn header(&self, reason: TokenUse) -> Result<Option<HeaderValue>, Error> {
        match &self.0 {
            Kind::None => Ok(None),
            Kind::Fixed(token) => Ok(Some(token.authorization())),
            Kind::Provider(provider) => {
                match catch_async("token provider", async { provider.token(reason).await }).await {
                    Some(Ok(token)) => Ok(Some(token.authorization())),
                    Some(Err(error)) => Err(Error::Token(Arc::from(error))),
                    None => Err(Error::Token(Arc::new(ProviderPanicked))),
                }
            }
        }
    }

    /// Returns whether a refresh may provide another token.
    pub fn can_refresh(&self) -> bool {
        matches!(self.0, Kind::Provider(_))
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::None => "Auth(none)",
            Kind::Fixed(_) => "Auth(token …)",
            Kind::Provider(_) => "Auth(provider)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_is_sent_once() {
        for given in ["secret", "Bearer secret", "bearer  secret", " secret\n"] {
            let token = Token::new(given).unwrap();
            assert_eq!(token.authorization(), "Bearer secret");
            assert!(token.authorization().is_sensitive());
            assert!(!format!("{token:?} {:?}", Auth::token(token.clone())).contains("secret"));
        }
    }

    #[test]
    fn every_token_that_a_header_can_carry_is_sent_and_no_other() {
        for byte in 0..=0xff_u8 {
            let given = format!("a{}b", char::from(byte));
            match Token::new(&given) {
                Ok(token) => {
                    assert_eq!(token.authorization().as_bytes(), format!("Bearer {given}").as_bytes())
                }
                Err(_) => assert!(HeaderValue::from_str(&given).is_err(), "{byte}"),
            }
        }
    }

    #[test]
    fn a_token_no_header_can_carry_is_refused() {
        for given in ["", "Bearer ", "a\nb", "a\u{0}b"] {
            let error = Token::new(given).unwrap_err();
            assert!(matches!(error, Error::Config(_)));
            assert!(given.trim().is_empty() || !error.to_string().contains(given));
        }
    }
}
