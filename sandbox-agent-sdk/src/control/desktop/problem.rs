//! Why the desktop rejected a call.

use serde_json::Value;

use crate::Error;
use crate::convert::open_enum::open_enum;

open_enum! {
    /// The kind of a [`DesktopProblem`].
    pub enum DesktopProblemKind {
        /// The platform of the server's machine does not support a desktop.
        UnsupportedPlatform = "desktop_unsupported_platform",
        /// Required programs are not installed.
        DependenciesMissing = "desktop_dependencies_missing",
        /// The desktop is not running.
        Inactive = "desktop_runtime_inactive",
        /// The desktop is still starting.
        Starting = "desktop_runtime_starting",
        /// The desktop failed to start, crashed, or failed to perform the call.
        Failed = "desktop_runtime_failed",
        /// The arguments of the call are invalid.
        InvalidAction = "desktop_invalid_action",
        /// The screenshot failed.
        ScreenshotFailed = "desktop_screenshot_failed",
        /// The input was not sent.
        InputFailed = "desktop_input_failed",
        /// The window does not exist.
        WindowNotFound = "window_not_found",
        /// No window has the focus.
        NoFocusedWindow = "no_focused_window",
        /// The application does not exist.
        AppNotFound = "app_not_found",
        /// The live stream is already running.
        StreamAlreadyActive = "stream_already_active",
        /// The live stream is not running.
        StreamNotActive = "stream_not_active",
        /// The state of a recording or of the live stream does not allow the call.
        Conflict = "conflict",
    }
}

/// Why the desktop rejected a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DesktopProblem {
    /// The kind of problem.
    pub kind: DesktopProblemKind,
    /// The server's message.
    pub message: Option<String>,
    /// Required programs that are not installed.
    pub missing_dependencies: Vec<String>,
    /// The command that installs the missing programs.
    pub install_command: Option<String>,
}

impl DesktopProblem {
    /// Extracts the desktop problem from the error of a call; `None` if there is none.
    #[must_use]
    pub fn of(error: &Error) -> Option<Self> {
        let problem = error.problem()?;
        let kind = DesktopProblemKind::from(problem.short_kind());
        if matches!(kind, DesktopProblemKind::Other(_)) {
            return None;
        }
        let missing = problem.extensions.get("missingDependencies").and_then(Value::as_array);
        let names = missing.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        let command = problem.extensions.get("installCommand").and_then(Value::as_str);
        Some(Self {
            kind,
            message: problem.detail.clone(),
            missing_dependencies: names,
            install_command: command.map(str::to_owned),
        })
    }
}
