//! The files of the server's machine.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use reqwest::Method;

use super::file_reader::FileReader;
use super::http::{Call, Http};
use super::parts::write_in_parts;
use super::route::Route;
use super::upload::Upload;
use crate::Error;
use crate::control::{FsEntries, FsEntry, FsMove, FsMoved, FsPath, FsStat, FsUploaded, FsWritten};

/// The files of the server's machine. Cheap to clone; needs no connection.
///
/// Paths are the server's: an absolute one means what it says, a relative one starts at the home directory of
/// the server and may not climb out of it. Any text is sent as it is, whatever characters it has. What does not
/// exist fails with an error whose [`is_not_found`](Error::is_not_found) says so.
///
/// # Large files
/// Reading has no limit: [`open`](Self::open) gives a file piece by piece. Writing has the limit of the server,
/// which is [2 MiB](crate::control::RELEASED_BODY_LIMIT) on released servers, for a file and for an archive alike; what
/// is larger fails with [`Error::PayloadTooLarge`], and the file stays as it was. Streams are sent as they come,
/// so that a server with a larger limit, or none, takes files of any size in little memory.
/// [`write_in_parts`](Self::write_in_parts) is a way round the limit where the server can run commands.
#[derive(Debug, Clone)]
pub struct Files {
    http: Http,
}

impl Files {
    pub(super) fn new(http: Http) -> Self {
        Self { http }
    }

    /// The entries of a directory, in no particular order. An empty path is the home directory.
    ///
    /// Symbolic links are listed as files, whatever they lead to.
    pub fn list(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<Vec<FsEntry>, Error>> {
        let route = Route::new("/v1/fs/entries").query("path", path.as_ref());
        let entries = self.http.value::<FsEntries>(Ok(Call::new("list files", Method::GET, route)));
        entries.map(|listing| listing.map(|listing| listing.entries)).boxed()
    }

    /// What a path leads to, with symbolic links followed.
    pub fn stat(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<FsStat, Error>> {
        let route = Route::new("/v1/fs/stat").query("path", path.as_ref());
        self.http.value(Ok(Call::new("stat file", Method::GET, route)))
    }

    /// Whether a path leads to anything.
    pub fn exists(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<bool, Error>> {
        self.stat(path)
            .map(|stat| match stat {
                Ok(_) => Ok(true),
                Err(error) if error.is_not_found() => Ok(false),
                Err(error) => Err(error),
            })
            .boxed()
    }

    /// Opens a file to read it piece by piece, in little memory whatever its size.
    pub fn open(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<FileReader, Error>> {
        let route = Route::new("/v1/fs/file").query("path", path.as_ref());
        let body = self.http.body(Ok(Call::new("read file", Method::GET, route)));
        body.map(|body| body.map(FileReader::new)).boxed()
    }

    /// A whole file. It is held in memory: [`open`](Self::open) a large one instead.
    pub fn read(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<Bytes, Error>> {
        let reader = self.open(path);
        Box::pin(async move { reader.await?.into_bytes(usize::MAX).await })
    }

    /// A whole file of text. One that is not UTF-8 fails with [`Error::Decode`].
    pub fn read_text(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<String, Error>> {
        let reader = self.open(path);
        Box::pin(async move {
            let reader = reader.await?;
            let what = reader.what();
            let bytes = reader.into_bytes(usize::MAX).await?;
            String::from_utf8(bytes.into()).map_err(|error| Error::Decode {
                what: what.to_owned(),
                raw: String::from_utf8_lossy(error.as_bytes()).into_owned(),
                source: Arc::new(error.utf8_error()),
            })
        })
    }

    /// Writes a file: bytes, text, or a stream of any kind. It replaces one that is there, and makes the
    /// directories above it.
    pub fn write(
        &self,
        path: impl AsRef<str>,
        content: impl Into<Upload>,
    ) -> BoxFuture<'static, Result<FsWritten, Error>> {
        let route = Route::new("/v1/fs/file").query("path", path.as_ref());
        let call = Call::new("write file", Method::PUT, route);
        self.http.value(Ok(call.upload("application/octet-stream", content.into())))
    }

    /// Writes a file of any size to a server that takes less at once, in little memory.
    ///
    /// The parts are written to a directory beside the file, and a command of the server (`sh`, with `cat` and
    /// `mv`) joins them. The file is replaced as a whole in the end, with default permissions; a symbolic link is
    /// replaced, too. A file of up to 1 MiB is written as [`write`](Self::write) does it.
    ///
    /// A server that cannot run commands is [`Error::Unsupported`], and nothing was written. When the command
    /// fails, it is an [`Error::Http`] with status 200 and what the command printed. In any case the parts are
    /// removed, unless the server is gone, or this future is dropped before it is done: then a directory stays
    /// whose name ends in `.parts-` and a number.
    pub fn write_in_parts(
        &self,
        path: impl AsRef<str>,
        content: impl Into<Upload>,
    ) -> BoxFuture<'static, Result<FsWritten, Error>> {
        let path = path.as_ref().to_owned();
        Box::pin(write_in_parts(self.http.clone(), self.clone(), path, content.into()))
    }

    /// Unpacks a tar archive, which must not be compressed, into a directory. An empty path is the home
    /// directory.
    ///
    /// When this fails, what was unpacked before the failure stays.
    pub fn upload_tar(
        &self,
        directory: impl AsRef<str>,
        archive: impl Into<Upload>,
    ) -> BoxFuture<'static, Result<FsUploaded, Error>> {
        let route = Route::new("/v1/fs/upload-batch").query("path", directory.as_ref());
        let call = Call::new("upload archive", Method::POST, route);
        self.http.value(Ok(call.upload("application/x-tar", archive.into())))
    }

    /// Makes a directory and those above it. One that is there already is fine.
    pub fn make_directory(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<FsPath, Error>> {
        let route = Route::new("/v1/fs/mkdir").query("path", path.as_ref());
        self.http.value(Ok(Call::new("make directory", Method::POST, route)))
    }

    /// Moves or renames a file or a directory.
    pub fn rename(&self, order: FsMove) -> BoxFuture<'static, Result<FsMoved, Error>> {
        let call = Call::new("move file", Method::POST, Route::new("/v1/fs/move"));
        self.http.value(call.json(&order))
    }

    /// Deletes a file or an empty directory.
    pub fn delete(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<FsPath, Error>> {
        let route = Route::new("/v1/fs/entry").query("path", path.as_ref());
        self.http.value(Ok(Call::new("delete file", Method::DELETE, route)))
    }

    /// Deletes a file, or a directory with everything in it.
    pub fn delete_all(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<FsPath, Error>> {
        let route = Route::new("/v1/fs/entry").query("path", path.as_ref()).flag("recursive", true);
        self.http.value(Ok(Call::new("delete directory", Method::DELETE, route)))
    }
}
