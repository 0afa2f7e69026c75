//! Changing a record that others change too.

use crate::Error;
use crate::sessions::{SessionRecord, SessionStore, StoreError};

/// How often a change is tried again that others were quicker with.
const CONFLICTS: usize = 32;

/// Changes a record, again and again until nobody else was quicker.
pub(super) async fn change(
    store: &dyn SessionStore,
    id: &str,
    mut change: impl FnMut(&mut SessionRecord) -> Result<(), Error>,
) -> Result<SessionRecord, Error> {
    let mut conflict = StoreError::Conflict { id: id.to_owned() };
    for _ in 0..CONFLICTS {
        let record = store.get(id).await?;
        let mut record = record.ok_or_else(|| StoreError::NotFound { id: id.to_owned() })?;
        change(&mut record)?;
        match store.put(record).await {
            Ok(record) => return Ok(record),
            Err(error @ StoreError::Conflict { .. }) => conflict = error,
            Err(error) => return Err(error.into()),
        }
    }
    Err(conflict.into())
}
