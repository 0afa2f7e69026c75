//! What a server reports about its desktop.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::open_enum::open_enum;

open_enum! {
    /// How far the desktop is.
    pub enum DesktopState {
        /// It is not running.
        Inactive = "inactive",
        /// Programs that it needs are not installed.
        InstallRequired = "install_required",
        /// It is starting.
        Starting = "starting",
        /// It is running.
        Active = "active",
        /// It is stopping.
        Stopping = "stopping",
        /// It could not start, or it crashed.
        Failed = "failed",
    }
}

open_enum! {
    /// How far a recording is.
    pub enum RecordingStatus {
        /// It is being recorded.
        Recording = "recording",
        /// It is complete.
        Completed = "completed",
        /// It failed.
        Failed = "failed",
    }
}

/// The state of the desktop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DesktopStatus {
    /// How far it is.
    pub state: DesktopState,
    /// The name of the display, such as `:99`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<String>,
    /// The size of the display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<Resolution>,
    /// When it was started, as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// What failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<DesktopFailure>,
    /// Programs that are not installed.
    #[serde(default)]
    pub missing_dependencies: Vec<String>,
    /// The command that installs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_command: Option<String>,
    /// The programs of the desktop.
    #[serde(default)]
    pub processes: Vec<DesktopProcess>,
    /// Where its log is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_log_path: Option<String>,
    /// The windows.
    #[serde(default)]
    pub windows: Vec<DesktopWindow>,
    /// Members that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The size of a display in pixels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Resolution {
    /// Width.
    pub width: u32,
    /// Height.
    pub height: u32,
    /// Dots per inch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dpi: Option<u32>,
}

/// What failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DesktopFailure {
    /// The kind of failure; see [`DesktopProblemKind`](super::DesktopProblemKind).
    pub code: String,
    /// What happened.
    #[serde(default)]
    pub message: String,
}

/// A program of the desktop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DesktopProcess {
    /// Its name.
    pub name: String,
    /// Its process id on the server's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Whether it runs.
    pub running: bool,
    /// Where its log is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_path: Option<String>,
}

/// A window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DesktopWindow {
    /// Its id.
    pub id: String,
    /// Its title.
    #[serde(default)]
    pub title: String,
    /// The left edge of its contents, in pixels.
    pub x: i32,
    /// The upper edge of its contents, in pixels.
    pub y: i32,
    /// The width of its contents.
    pub width: u32,
    /// The height of its contents.
    pub height: u32,
    /// Whether it has the focus.
    #[serde(default)]
    pub is_active: bool,
}

#[derive(Deserialize)]
pub(super) struct WindowList {
    pub(super) windows: Vec<DesktopWindow>,
}

/// The display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DisplayInfo {
    /// Its name, such as `:99`.
    pub display: String,
    /// Its size.
    pub resolution: Resolution,
}

/// Where the mouse is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MousePosition {
    /// From the left, in pixels.
    pub x: i32,
    /// From the top, in pixels.
    pub y: i32,
    /// The screen it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub screen: Option<i32>,
    /// The window it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
}

/// What is in the clipboard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Clipboard {
    /// The text; empty if there is none.
    pub text: String,
    /// The selection it was read from.
    #[serde(default)]
    pub selection: String,
}

/// An application that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Launched {
    /// Its id among the server's [processes](crate::control::processes::Processes).
    pub process_id: String,
    /// Its process id on the server's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its window, if one was waited for and appeared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_id: Option<String>,
}

/// A picture of the display.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Screenshot {
    /// The media type, such as `image/png`.
    pub content_type: Option<String>,
    /// The encoded picture.
    pub bytes: Bytes,
}

/// A recording of the display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Recording {
    /// Its id.
    pub id: String,
    /// How far it is.
    pub status: RecordingStatus,
    /// The id of the recorder among the server's processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<String>,
    /// The name of its file.
    #[serde(default)]
    pub file_name: String,
    /// Its size in bytes; 0 while it is being recorded.
    #[serde(default)]
    pub bytes: u64,
    /// When it was started, as RFC 3339 text.
    #[serde(default)]
    pub started_at: String,
    /// When it ended, as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct RecordingList {
    pub(super) recordings: Vec<Recording>,
}

/// Whether the display is streamed live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct StreamStatus {
    /// Whether it is.
    pub active: bool,
    /// The window that is streamed, if not the whole display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_id: Option<String>,
    /// The id of the streaming program among the server's processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<String>,
}
