//! Random tokens.

use std::io;

use zeroize::Zeroizing;

use crate::client::random::{fill, hex};
use crate::client::secret::Secret;

/// A token of 256 random bits.
///
/// # Errors
/// If the operating system provides no randomness.
pub(crate) fn random_token() -> io::Result<Secret> {
    let mut bytes = Zeroizing::new([0; 32]);
    fill(bytes.as_mut_slice())?;
    Ok(hex(bytes.as_slice()).into())
}

#[cfg(test)]
mod tests {
    use crate::client::random::outage;

    #[test]
    fn without_randomness_of_the_system_there_is_no_token() {
        outage::during(|| assert!(super::random_token().is_err()));
    }

    #[test]
    fn tokens_have_256_bits_and_are_never_the_same() {
        let token = || super::random_token().unwrap();
        assert_eq!(token().expose().len(), 64);
        assert_ne!(token(), token());
    }
}
