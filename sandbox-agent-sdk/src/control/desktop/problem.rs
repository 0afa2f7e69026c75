//! Why the desktop refused a call.

use serde_json::Value;

use crate::Error;
use crate::convert::open_enum::open_enum;

open_enum! {
    /// The kind of a desktop problem.
    pub enum DesktopProblemKind {
        /// The server's machine cannot have a desktop.
        UnsupportedPlatform = "desktop_unsupported_platform",
        /// Programs that the desktop needs are not installed.
        DependenciesMissing = "desktop_dependencies_missing",
        /// The desktop is not running.
        Inactive = "desktop_runtime_inactive",
        /// The desktop is still starting.
        Starting = "desktop_runtime_starting",
        /// The desktop could not start, crashed, or could not do this.
        Failed = "desktop_runtime_failed",
        /// The arguments of the call are invalid.
        InvalidAction = "desktop_invalid_action",
        /// The screenshot failed.
        ScreenshotFailed = "desktop_screenshot_failed",
        /// The input was not sent.
        InputFailed = "desktop_input_failed",
        /// There is no such window.
        WindowNotFound = "window_not_found",
        /// No window has the focus.
        NoFocusedWindow = "no_focused_window",
        /// There is no such application.
        AppNotFound = "app_not_found",
        /// The display is streamed already.
        StreamAlreadyActive = "stream_already_active",
        /// The display is not streamed.
        StreamNotActive = "stream_not_active",
        /// The state of a recording or stream does not allow this.
        Conflict = "conflict",
    }
}

/// Why the desktop refused a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DesktopProblem {
    /// The kind.
    pub kind: DesktopProblemKind,
    /// What happened.
    pub message: Option<String>,
    /// Programs that are not installed.
    pub missing_dependencies: Vec<String>,
    /// The command that installs them.
    pub install_command: Option<String>,
}

impl DesktopProblem {
    /// The desktop problem behind the error of a call; `None` if it is none.
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
