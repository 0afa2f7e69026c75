//! Unpacks an uploaded tar archive.

use std::io::{self, Read};

use cap_std::fs::{OpenOptions, OpenOptionsExt, Permissions, PermissionsExt};
use nix::fcntl::OFlag;
use serde::Serialize;
use tar::{Archive, Entry, EntryType};

use super::{
    path::VirtualPath,
    root::{Root, problem},
};
use crate::problem::Problem;

/// How many paths a response lists.
const MAX_NAMED_PATHS: usize = 1024;

/// The result of unpacking.
#[derive(Debug, Default, Serialize)]
pub(super) struct Unpacked {
    /// The first paths, in the order of the archive.
    paths: Vec<String>,
    /// Whether there were more.
    truncated: bool,
}

/// Unpacks an archive below `base` while reading it. After a failure, unpacked entries remain.
///
/// Supports directories, files, symbolic and hard links; rejects other kinds of entries. Blocks.
pub(super) fn unpack(root: &Root, base: &VirtualPath, archive: impl Read) -> Result<Unpacked, Problem> {
    root.make_directory(base)?;
    let mut unpacked = Unpacked::default();
    let mut archive = Archive::new(archive);
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        if entry.header().entry_type() == EntryType::XGlobalHeader {
            continue;
        }
        let path = base.join(&entry.path().map_err(unreadable)?)?;
        // An archive of `.` contains the directory itself, which already exists.
        if path.inner() == base.inner() {
            continue;
        }
        unpack_entry(root, base, &path, &mut entry)?;
        if unpacked.paths.len() < MAX_NAMED_PATHS {
            unpacked.paths.push(path.shown().to_owned());
        } else {
            unpacked.truncated = true;
        }
    }
    Ok(unpacked)
}

fn unpack_entry<R: Read>(
    root: &Root,
    base: &VirtualPath,
    path: &VirtualPath,
    entry: &mut Entry<'_, R>,
) -> Result<(), Problem> {
    let kind = entry.header().entry_type();
    if kind.is_dir() {
        return root.make_directory(path);
    }
    root.make_parents(path)?;
    if kind.is_file() || kind == EntryType::GNUSparse {
        return unpack_file(root, path, entry);
    }
    let target = entry.link_name().map_err(unreadable)?.unwrap_or_default();
    match kind {
        EntryType::Symlink => {
            make_way(root, path)?;
            root.dir().symlink(&target, path.inner()).map_err(|error| problem(&error, path))
        }
        EntryType::Link => {
            let original = base.join(&target)?;
            make_way(root, path)?;
            let linked = root.dir().hard_link(original.inner(), root.dir(), path.inner());
            linked.map_err(|error| problem(&error, &original))
        }
        _ => Err(Problem::invalid_request(format!("unsupported archive entry: {}", path.shown()))),
    }
}

fn unpack_file<R: Read>(root: &Root, path: &VirtualPath, entry: &mut Entry<'_, R>) -> Result<(), Problem> {
    let failed = |error| problem(&error, path);
    // The setuid, setgid and sticky bits are dropped.
    let mode = entry.header().mode().map_err(unreadable)? & 0o777;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut file = root.dir().open_with(path.inner(), &options).map_err(failed)?;
    io::copy(entry, &mut file).map_err(unreadable)?;
    file.set_permissions(Permissions::from_mode(mode)).map_err(failed)
}

/// Removes a file or link at the target of a new link.
fn make_way(root: &Root, path: &VirtualPath) -> Result<(), Problem> {
    match root.dir().symlink_metadata(path.inner()) {
        Ok(existing) if !existing.is_dir() => {
            root.dir().remove_file(path.inner()).map_err(|error| problem(&error, path))
        }
        _ => Ok(()),
    }
}

/// An unreadable archive or an unwritable disk: the client gets the plain message.
fn unreadable(error: io::Error) -> Problem {
    Problem::stream_error(error.to_string())
}
