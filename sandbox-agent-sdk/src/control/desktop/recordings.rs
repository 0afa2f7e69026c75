//! Recordings of the display, and its live stream.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use reqwest::Method;
use serde_json::json;

use super::calls::Desktop;
use super::info::{Recording, RecordingList, StreamStatus};
use crate::Error;
use crate::control::FileReader;
use crate::control::http::Call;
use crate::control::route::Route;

/// Extra time for the recorder to finish its file.
const FINISH_WITHIN: Duration = Duration::from_secs(60);

impl Desktop {
    /// Starts a recording of the display at 30 frames per second. Only one recording can run at a time.
    pub fn start_recording(&self) -> BoxFuture<'static, Result<Recording, Error>> {
        self.post("start recording", "/v1/desktop/recording/start", &json!({}))
    }

    /// Starts a recording at the given frames per second, from 1 to 60.
    pub fn start_recording_at(&self, fps: u32) -> BoxFuture<'static, Result<Recording, Error>> {
        self.post("start recording", "/v1/desktop/recording/start", &json!({ "fps": fps }))
    }

    /// Stops the running recording and returns it.
    pub fn stop_recording(&self) -> BoxFuture<'static, Result<Recording, Error>> {
        let limit = self.http.timeouts().response + FINISH_WITHIN;
        let route = Route::new("/v1/desktop/recording/stop");
        self.http.value(Ok(Call::new("stop recording", Method::POST, route).response_timeout(Some(limit))))
    }

    /// Lists all recordings.
    pub fn recordings(&self) -> BoxFuture<'static, Result<Vec<Recording>, Error>> {
        let list = self.get::<RecordingList>("list recordings", "/v1/desktop/recordings");
        list.map(|list| list.map(|list| list.recordings)).boxed()
    }

    /// Returns one recording.
    pub fn recording(&self, id: &str) -> BoxFuture<'static, Result<Recording, Error>> {
        self.http.value(recording(id).map(|route| Call::new("get recording", Method::GET, route)))
    }

    /// Downloads a recording as an MP4 stream, without holding all of it in memory.
    pub fn download_recording(&self, id: &str) -> BoxFuture<'static, Result<FileReader, Error>> {
        let route = recording(id).and_then(|route| route.segment("download"));
        let call = route
            .map(|route| Call::new("download recording", Method::GET, route).accept("video/*, */*;q=0.5"));
        self.http.body(call).map(|body| body.map(FileReader::new)).boxed()
    }

    /// Deletes a completed recording.
    pub fn delete_recording(&self, id: &str) -> BoxFuture<'static, Result<(), Error>> {
        self.http.done(recording(id).map(|route| Call::new("delete recording", Method::DELETE, route)))
    }

    /// Starts a live stream of the display over WebRTC. Watching it needs a WebRTC client.
    pub fn start_stream(&self) -> BoxFuture<'static, Result<StreamStatus, Error>> {
        self.act("start desktop stream", "/v1/desktop/stream/start")
    }

    /// Stops the live stream. Succeeds if it is not running.
    pub fn stop_stream(&self) -> BoxFuture<'static, Result<StreamStatus, Error>> {
        self.act("stop desktop stream", "/v1/desktop/stream/stop")
    }

    /// Returns the state of the live stream.
    pub fn stream_status(&self) -> BoxFuture<'static, Result<StreamStatus, Error>> {
        self.get("get desktop stream status", "/v1/desktop/stream/status")
    }
}

fn recording(id: &str) -> Result<Route, Error> {
    Route::new("/v1/desktop/recordings").segment(id)
}
