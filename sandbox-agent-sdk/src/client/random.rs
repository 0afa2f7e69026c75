//! Randomness from the operating system.

use std::fmt::Write;
use std::io;

/// Creates an id of 128 random bits that cannot be guessed.
///
/// # Errors
/// If the operating system provides no randomness. Such an id may be a credential, so there is no weaker fallback.
pub(crate) fn random_id() -> io::Result<String> {
    Ok(hex(&random_bytes::<16>()?))
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

/// Creates bytes that cannot be guessed.
///
/// # Errors
/// If the operating system provides no randomness.
pub(crate) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    #[cfg(feature = "fuzzing")]
    if let Some(bytes) = seeded() {
        return Ok(bytes);
    }
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

/// Fills the bytes from the operating system.
///
/// # Errors
/// If it provides no randomness.
pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    #[cfg(test)]
    if outage::is_active() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    getrandom::fill(bytes).map_err(io::Error::other)
}

/// Formats bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
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

    use super::{outage, random_bytes, random_id};

    #[test]
    fn ids_are_never_the_same() {
        let ids: HashSet<_> = (0..1000).map(|_| random_id().unwrap()).collect();
        assert!(ids.len() == 1000 && ids.iter().all(|id| id.len() == 32));
    }

    #[test]
    fn without_randomness_of_the_system_there_are_no_ids_or_bytes() {
        outage::during(|| {
            assert!(random_id().is_err());
            assert!(random_bytes::<8>().is_err());
        });
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
}
