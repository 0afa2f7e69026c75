//! Who may write what happens in a session.

use super::{NewEvent, StoreError};

/// Refuses an event that was taken down before somebody else took its session up.
pub(super) fn check_epoch(event: &NewEvent, epoch: u64) -> Result<(), StoreError> {
    match event.epoch {
        Some(taken) if taken != epoch => Err(StoreError::TakenOver { id: event.session_id.clone(), epoch }),
        _ => Ok(()),
    }
}

/// How often a session was taken up, by its record as it is stored. What cannot be read is nobody's.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) fn epoch_of(document: &[u8]) -> u64 {
    /// The part of a record that counts here.
    #[derive(Default, serde::Deserialize)]
    struct Taken {
        #[serde(default)]
        epoch: u64,
    }
    serde_json::from_slice::<Taken>(document).unwrap_or_default().epoch
}
