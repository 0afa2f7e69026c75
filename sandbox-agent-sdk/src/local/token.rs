//! Random tokens.

use std::io;

use zeroize::Zeroizing;

use crate::client::random::hex;
use crate::client::secret::Secret;

/// A token of 256 random bits.
///
/// # Errors
/// If the operating system provides no randomness.
pub(crate) fn random_token() -> Result<Secret, io::Error> {
    let mut bytes = Zeroizing::new([0; 32]);
    getrandom::fill(bytes.as_mut_slice()).map_err(io::Error::other)?;
    Ok(hex(bytes.as_slice()).into())
}

#[cfg(test)]
mod tests {
    #[test]
    fn tokens_have_256_bits_and_are_never_the_same() {
        let token = || super::random_token().unwrap();
        assert_eq!(token().expose().len(), 64);
        assert_ne!(token(), token());
    }
}
