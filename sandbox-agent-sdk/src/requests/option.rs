//! The options of a permission request.

use serde::Serialize;
use serde_json::{Value, json};

use crate::convert::open_enum::open_enum;

open_enum! {
    /// The meaning of a permission option.
    pub enum PermissionKind {
        /// Allows the action this time.
        AllowOnce = "allow_once",
        /// Allows the action from now on.
        AllowAlways = "allow_always",
        /// Rejects the action this time.
        RejectOnce = "reject_once",
        /// Rejects the action from now on.
        RejectAlways = "reject_always",
    }
}

impl PermissionKind {
    /// Returns whether an option of this kind allows the action. `false` for an unknown kind.
    #[must_use]
    pub fn is_allow(&self) -> bool {
        matches!(self, Self::AllowOnce | Self::AllowAlways)
    }
}

/// One option of a permission request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PermissionOption {
    /// The id to pass to [`PermissionRequest::choose`](super::PermissionRequest::choose).
    #[serde(rename = "optionId")]
    pub id: String,
    /// The display name.
    pub name: String,
    /// The meaning of the option; `None` if the agent does not specify it.
    pub kind: Option<PermissionKind>,
    /// The option as received. Not serialized.
    #[serde(skip)]
    pub raw: Value,
}

impl PermissionOption {
    /// Parses the options of a request. Skips options without an id, which cannot be chosen.
    ///
    /// Early servers use `id` instead of `optionId` and send no kind. Their ids are the names of the kinds.
    pub(super) fn read_all(params: &Value) -> Vec<Self> {
        let options = params.get("options").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let read = options.iter().filter_map(|option| {
            let text = |name: &str| option.get(name).and_then(Value::as_str);
            let id = text("optionId").or_else(|| text("id"))?.to_owned();
            let name = text("name").unwrap_or(&id).to_owned();
            let named = || match PermissionKind::from(id.as_str()) {
                PermissionKind::Other(_) => None,
                kind => Some(kind),
            };
            let kind = text("kind").map(PermissionKind::from).or_else(named);
            Some(Self { kind, id, name, raw: option.clone() })
        });
        read.collect()
    }

    /// Returns the first option of the first of these kinds that the agent offers.
    pub(super) fn find<'a>(options: &'a [Self], kinds: &[PermissionKind]) -> Option<&'a Self> {
        kinds.iter().find_map(|kind| options.iter().find(|option| option.kind.as_ref() == Some(kind)))
    }
}

/// Returns a rejecting response: an option that rejects if there is one, otherwise "cancelled".
pub(super) fn refusal(options: &[PermissionOption]) -> Value {
    match PermissionOption::find(options, &[PermissionKind::RejectOnce, PermissionKind::RejectAlways]) {
        Some(option) => selected(&option.id),
        None => cancelled(),
    }
}

pub(super) fn selected(id: &str) -> Value {
    json!({"outcome": {"outcome": "selected", "optionId": id}})
}

pub(super) fn cancelled() -> Value {
    json!({"outcome": {"outcome": "cancelled"}})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{PermissionKind, PermissionOption, cancelled, refusal, selected};

    #[test]
    fn an_option_of_an_unknown_kind_is_preserved_and_one_without_an_id_is_skipped() {
        let params = json!({"options": [
            {"optionId": "y", "name": "Yes", "kind": "allow_once", "_meta": {"hot": true}},
            {"optionId": "z", "kind": "brand_new"}, {"name": "no id"}, 5, {"optionId": 7}]});
        let options = PermissionOption::read_all(&params);
        assert_eq!(options.len(), 2);
        assert_eq!(options[0].raw["_meta"]["hot"], true);
        assert_eq!(options[1].kind, Some(PermissionKind::Other("brand_new".into())));
        assert_eq!(options[1].name, "z");
        assert!(!options[1].kind.as_ref().unwrap().is_allow());
    }

    #[test]
    fn the_kind_of_an_early_servers_option_is_its_id() {
        let options = PermissionOption::read_all(&json!({"options": [
            {"id": "allow_once", "name": "Allow once"}, {"id": "deny", "name": "Deny"},
            {"id": "allow_always", "kind": "reject_once"}]}));
        assert_eq!(options[0].kind, Some(PermissionKind::AllowOnce));
        assert_eq!(options[1].kind, None);
        assert_eq!(
            options[2].kind,
            Some(PermissionKind::RejectOnce),
            "the kind that the agent sends takes precedence"
        );
    }

    #[test]
    fn a_rejection_uses_a_rejecting_option_and_cancels_without_one() {
        let table = [
            (
                json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]),
                Some("n"),
            ),
            (
                json!([{"optionId": "never", "kind": "reject_always"}, {"optionId": "n", "kind": "reject_once"}]),
                Some("n"),
            ),
            (json!([{"optionId": "never", "kind": "reject_always"}]), Some("never")),
            (json!([{"optionId": "a", "kind": "allow_always"}]), None),
            (json!([{"id": "deny", "name": "Deny"}]), None),
            (json!("nonsense"), None),
            (json!(null), None),
        ];
        for (options, id) in table {
            let expected = id.map_or_else(cancelled, selected);
            assert_eq!(
                refusal(&PermissionOption::read_all(&json!({"options": options}))),
                expected,
                "{options}"
            );
        }
        assert_eq!(refusal(&PermissionOption::read_all(&json!(null))), cancelled());
    }
}
