//! Randomness from the operating system.

use std::fmt::Write;
#[cfg(feature = "sessions")]
use std::hash::{BuildHasher, RandomState};
use std::io;

/// An id of 128 random bits that cannot be guessed.
///
/// # Errors
/// If the operating system provides no randomness. Such an id may be a credential, so there is no weaker source.
pub(crate) fn random_id() -> io::Result<String> {
    Ok(hex(&random_bytes::<16>()?))
}

/// A unique id that is no credential. It can be guessed if the operating system provides no randomness.
#[cfg(feature = "sessions")]
pub(crate) fn unique_id() -> String {
    hex(&unique_bytes::<16>())
}

/// A random number below `end`, for waits that should differ between processes.
#[cfg(feature = "sessions")]
pub(crate) fn random_below(end: u32) -> u32 {
    u32::try_from(u64::from_le_bytes(unique_bytes()) % u64::from(end.max(1))).unwrap_or_default()
}

/// A random number that cannot be guessed.
///
/// # Errors
/// If the operating system provides no randomness.
#[cfg(any(feature = "files", feature = "local", feature = "terminals"))]
pub(crate) fn random_number() -> io::Result<u64> {
    Ok(u64::from_le_bytes(random_bytes()?))
}

/// A token of 256 random bits.
///
/// # Errors
/// If the operating system provides no randomness.
#[cfg(all(any(feature = "local", test), unix))]
pub(crate) fn random_token() -> io::Result<crate::client::secret::Secret> {
    let mut bytes = zeroize::Zeroizing::new([0; 32]);
    fill(bytes.as_mut_slice())?;
    Ok(hex(bytes.as_slice()).into())
}

#[cfg(feature = "fuzzing")]
thread_local! {
    /// The state of the generator that replaces the operating system on this thread.
    static SEED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

#[cfg(feature = "fuzzing")]
/// Seeds the generator of this thread, so that a simulation is reproducible.
pub(crate) fn seed(seed: u64) {
    SEED.set(Some(seed));
}

#[cfg(feature = "fuzzing")]
fn seeded<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let mut state = SEED.get()?;
    for chunk in bytes.chunks_mut(8) {
        // splitmix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..chunk.len()]);
    }
    SEED.set(Some(state));
    Some(bytes)
}

fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    #[cfg(feature = "fuzzing")]
    if let Some(bytes) = seeded() {
        return Ok(bytes);
    }
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

#[cfg(feature = "sessions")]
fn unique_bytes<const N: usize>() -> [u8; N] {
    random_bytes().unwrap_or_else(|_| {
        let mut bytes = [0; N];
        for (index, chunk) in bytes.chunks_mut(8).enumerate() {
            // Each hasher has other keys than the one before.
            let number = RandomState::new().hash_one(index).to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
        bytes
    })
}

/// Fills the bytes from the operating system.
fn fill(bytes: &mut [u8]) -> io::Result<()> {
    #[cfg(test)]
    if outage::is_active() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    getrandom::fill(bytes).map_err(io::Error::other)
}

fn hex(bytes: &[u8]) -> String {
    // The capacity is exact, so that a secret is not copied by growing.
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Simulates an operating system without randomness.
#[cfg(test)]
pub(crate) mod outage {
    use std::cell::Cell;

    thread_local! {
        static ACTIVE: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn is_active() -> bool {
        ACTIVE.get()
    }

    /// Runs `work` on this thread while the operating system provides no randomness.
    pub(crate) fn during<T>(work: impl FnOnce() -> T) -> T {
        ACTIVE.set(true);
        let done = work();
        ACTIVE.set(false);
        done
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{outage, random_below, random_id, random_number, unique_id};

    #[test]
    fn ids_are_never_the_same() {
        let ids: HashSet<_> = (0..1000).map(|_| random_id().unwrap()).collect();
        assert!(ids.len() == 1000 && ids.iter().all(|id| id.len() == 32));
    }

    #[test]
    fn without_randomness_of_the_system_there_is_no_id_number_or_token() {
        outage::during(|| {
            assert!(random_id().is_err());
            assert!(random_number().is_err());
            #[cfg(unix)]
            assert!(super::random_token().is_err());
        });
    }

    #[test]
    fn ids_that_are_no_credentials_are_unique_even_without_randomness_of_the_system() {
        let ids: HashSet<_> = outage::during(|| (0..1000).map(|_| unique_id()).collect());
        assert!(ids.len() == 1000 && ids.iter().all(|id| id.len() == 32));
    }

    /// Ids made one after the other by hashing with related keys would still be unique.
    #[test]
    fn every_bit_of_an_id_is_set_half_of_the_time() {
        let ids: Vec<u128> =
            (0..2000).map(|_| u128::from_str_radix(&random_id().unwrap(), 16).unwrap()).collect();
        for bit in 0..128 {
            let set = ids.iter().filter(|id| *id >> bit & 1 == 1).count();
            assert!((800..1200).contains(&set), "bit {bit} is set in {set} of 2000");
        }
    }

    #[test]
    fn numbers_stay_below_their_end() {
        assert!((0..100).all(|_| random_below(3) < 3 && random_below(0) == 0));
    }

    #[cfg(unix)]
    #[test]
    fn tokens_have_256_bits_and_are_never_the_same() {
        let token = || super::random_token().unwrap();
        assert_eq!(token().expose().len(), 64);
        assert_ne!(token(), token());
    }
}
