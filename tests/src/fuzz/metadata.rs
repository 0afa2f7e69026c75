//! Metadata of sessions.

use sandbox_agent_sdk::session::{MetadataKey, SessionMetadata};
use serde_json::{Map, Value};

/// Metadata is read back as it was written, and writing it changes nothing else in a message.
pub(crate) fn metadata(data: &[u8]) {
    let Ok(message) = serde_json::from_slice::<Value>(data) else { return };
    let Some(read) = SessionMetadata::read_from(&message) else {
        // What cannot be read has a place, or is left as it was.
        let patch = SessionMetadata::new().with_title("t");
        let mut written = message.clone();
        match patch.write_into(&mut written) {
            Ok(()) => assert_eq!(SessionMetadata::read_from(&written), Some(patch)),
            Err(_) => assert_eq!(written, message),
        }
        return;
    };
    for key in MetadataKey::ALL {
        // A getter gives a view, and never something else than a member that is there.
        let _contained = (read.contains(*key), read.is_null(*key));
    }
    let views = [read.title(), read.model(), read.mode(), read.variant(), read.agent()];
    for view in views.into_iter().flatten() {
        assert!(read.iter().any(|(_, value)| value == view), "{view:?} is in no member");
    }
    let _end = read.termination_info().map(|end| end.to_string());
    let mut written = Value::Null;
    read.write_into(&mut written).expect("an absent message has a place for metadata");
    if read.is_empty() {
        assert_eq!(written, Value::Null);
    } else {
        assert_eq!(SessionMetadata::read_from(&written), Some(read.clone()));
    }
    // Once more into the message that it came from: nothing changes.
    let mut again = message.clone();
    read.write_into(&mut again).expect("the metadata was read from there");
    assert_eq!(again, message);
    // A patch changes its own keys and no others.
    let mut patched = message.clone();
    SessionMetadata::new().with("\u{0}fuzz", 1).write_into(&mut patched).expect("there is a place");
    let mut entries: Map<String, Value> = read.into_map();
    entries.insert("\u{0}fuzz".to_owned(), 1.into());
    assert_eq!(SessionMetadata::read_from(&patched), Some(entries.into()));
}
