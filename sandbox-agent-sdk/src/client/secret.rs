//! Text that is never printed, and is wiped from memory on drop.

use std::fmt;

use zeroize::Zeroizing;

/// A token or a URL with a password in it.
///
/// `Debug` shows nothing of it, and its memory is overwritten on drop. Copies that other crates make of it, such as the
/// header of an HTTP request, are not covered.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Zeroizing<String>);

impl Secret {
    /// The text itself.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

/// For builders that take a token as text.
impl AsRef<str> for Secret {
    fn as_ref(&self) -> &str {
        self.expose()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::from("hush".to_owned());
        assert_eq!(secret.expose(), "hush");
        assert_eq!(format!("{secret:?} {secret:#?}"), "Secret(…) Secret(…)");
    }

    /// The wrapper type guarantees this. A check that reads freed memory would need unsafe code.
    #[test]
    fn a_secret_is_overwritten_on_drop() {
        fn is_overwritten(_: &impl zeroize::ZeroizeOnDrop) {}
        is_overwritten(&Secret::from("hush".to_owned()).0);
    }
}
