//! Tokens, and where they come from.

use std::{error::Error as StdError, fmt, future::Future, pin::Pin, sync::Arc};

use reqwest::header::HeaderValue;

use crate::Error;

/// A bearer token. It never shows itself in `Debug`, errors or traces.
#[derive(Clone)]
pub struct Token(HeaderValue);

impl Token {
    /// Takes a token with or without the word `Bearer` before it.
    pub fn new(token: impl AsRef<str>) -> Result<Self, Error> {
        let token = token.as_ref().trim();
        let bare = match token.split_once(char::is_whitespace).unwrap_or((token, "")) {
            (scheme, rest) if scheme.eq_ignore_ascii_case("bearer") => rest.trim_start(),
            _ => token,
        };
        if bare.is_empty() {
            return Err(Error::Config("the token is empty".to_owned()));
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {bare}"))
            .map_err(|_| Error::Config("the token has characters that no header can carry".to_owned()))?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// The value of the `Authorization` header, marked as sensitive.
    pub fn authorization(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why a token is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenUse {
    /// A request is about to be sent: a token that was had before will do.
    Request,
    /// The server has just refused the last token: a new one is needed.
    Refresh,
}

/// What a token provider may fail with.
pub type TokenError = Box<dyn StdError + Send + Sync>;

/// Gives a token for each request.
///
/// It is asked before every POST, GET and DELETE, and once more with [`TokenUse::Refresh`] when the server
/// answers 401; a second 401 is final. Cache in here if a token is costly.
pub trait TokenProvider: Send + Sync + 'static {
    /// The token to send.
    fn token(&self, reason: TokenUse) -> impl Future<Output = Result<Token, TokenError>> + Send;
}

/// A closure of the reason works as a provider.
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

/// How requests are authorised: one setting that a connection and the layers above it can share.
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
    /// No token at all.
    pub fn none() -> Self {
        Self::default()
    }

    /// The same token for every request.
    pub fn token(token: Token) -> Self {
        Self(Kind::Fixed(token))
    }

    /// A token from a provider for every request.
    pub fn provider(provider: impl TokenProvider) -> Self {
        Self(Kind::Provider(Arc::new(provider)))
    }

    /// The value of the `Authorization` header for the next request.
    pub async fn header(&self, reason: TokenUse) -> Result<Option<HeaderValue>, Error> {
        match &self.0 {
            Kind::None => Ok(None),
            Kind::Fixed(token) => Ok(Some(token.authorization())),
            Kind::Provider(provider) => match provider.token(reason).await {
                Ok(token) => Ok(Some(token.authorization())),
                Err(error) => Err(Error::Token(Arc::from(error))),
            },
        }
    }

    /// Whether asking again may give another token.
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
    fn a_token_no_header_can_carry_is_refused() {
        for given in ["", "Bearer ", "a\nb", "a\u{0}b"] {
            let error = Token::new(given).unwrap_err();
            assert!(matches!(error, Error::Config(_)));
            assert!(given.trim().is_empty() || !error.to_string().contains(given));
        }
    }
}
