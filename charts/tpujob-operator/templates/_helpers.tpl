{{- /* Name of the operator's objects. */}}
{{- define "tpujob.name" -}}
{{- if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-operator" .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tpujob.selector" -}}
app.kubernetes.io/name: tpujob-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tpujob.labels" -}}
{{ include "tpujob.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tpujob.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tpujob.name" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "tpujob.image" -}}
{{- default (printf "tpujob/operator:%s" .Chart.AppVersion) .Values.image.reference }}
{{- end }}

{{- define "tpujob.trainerImage" -}}
{{- default (printf "tpujob/trainer:%s" .Chart.AppVersion) .Values.trainer.image }}
{{- end }}

{{- define "tpujob.keySecret" -}}
{{- default (printf "%s-key" (include "tpujob.name" .)) .Values.operatorKey.existingSecret }}
{{- end }}

{{- /* A pod of a dead node is replaced after 10 s, unless the user says otherwise. */}}
{{- define "tpujob.tolerations" -}}
{{- $keys := list }}
{{- range .Values.tolerations }}
{{- $keys = append $keys (default "" .key) }}
{{- end }}
{{- range list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" }}
{{- if not (has . $keys) }}
- key: {{ . }}
  operator: Exists
  effect: NoExecute
  tolerationSeconds: 10
{{- end }}
{{- end }}
{{- with .Values.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end }}
