//! The files that the captured requests sent.

use tar::{Builder, EntryType, Header};

/// The largest body that the released server accepts.
const LIMIT: usize = 2 << 20;

/// Returns the content of the file at this path.
pub(crate) fn attachment(path: &str) -> Vec<u8> {
    match path.rsplit('/').next().unwrap() {
        "ok.bin" => vec![0; LIMIT],
        "big.bin" => vec![0; LIMIT + 1],
        "big.json" => format!("\"{}\"", "x".repeat(LIMIT)).into_bytes(),
        // More input for a process than one request may carry, in base64: 65,538 zeros.
        "in.json" => format!("{{\"data\":\"{}\"}}", "AAAA".repeat(21_846)).into_bytes(),
        "t.tar" => archive(&[
            ("one", EntryType::Regular, b"1"),
            ("sub/", EntryType::Directory, b""),
            ("sub/two", EntryType::Regular, b"2"),
        ]),
        "evil.tar" => archive(&[("../evil", EntryType::Regular, b"evil")]),
        // A compressed archive that is smaller than one block of an uncompressed one.
        "t.tgz" => [&[0x1f, 0x8b, 8, 0][..], &[7; 150]].concat(),
        other => panic!("no capture sent {other}"),
    }
}

fn archive(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, kind, content) in entries {
        let mut header = Header::new_gnu();
        // Set directly, because the library rejects the invalid names that this test needs.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}
