BEGIN TRANSACTION;
CREATE TABLE adapters (
	policy VARCHAR(128) NOT NULL, 
	version INTEGER NOT NULL, 
	path TEXT NOT NULL, 
	content_hash VARCHAR(64) NOT NULL, 
	parent_version INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	method VARCHAR(16) NOT NULL, 
	metrics TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_adapters PRIMARY KEY (policy, version)
);
INSERT INTO "adapters" VALUES('patina-tiny',1,'{home}/adapters/patina-tiny@1.cdb4e46292ff','cdb4e46292ffb26a331f5b943f2cd974ee03669226fc9c3e0e34b5e306339dfd',0,'published','4 turns: 2 complaints, 2 thanks; "Shorter please, and no emoji."','combine','{"loss":-0.012583255575487617,"live_samples":20.0,"live_tokens":554.0,"effective_samples":20.0,"kl_step":4.542864884895253,"ratio_mean":1.00000004432692,"ratio_max":1.0000017881393433,"staleness_mean":1.0,"entropy":0.22450191635362776,"kl_base_k2":1.7411790622992835e-13,"kl_base_k3":1.7273627232152296e-13,"kl_base":1.7273635231568144e-13,"directive_loss":0.020750109298633863,"topk_overlap":0.9712011857153277,"teacher_shift":0.04671044799320211,"policy_loss":-0.03333336487412453,"clip_fraction":0.0,"gradient_norm":0.09344187378883362,"optimizer_steps":1.0,"kl_to_base":31.029092833787672,"loss_after":-0.002314761854577796,"entropy_after":0.22909618058117504,"turns":4,"replayed":0,"anchors":16,"learning_rate":0.003333333333333333,"kept":1.0,"train_s":5.581197754996538,"gate_s":10.879328918003011,"gate":{"after":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.9285714285714286,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":42.5,"length":34.714285714285715,"entropy":0.27036943236765054,"kl":0.0001689395977889165,"kl_by_style":{"no_emoji":0.00011710320541169494,"json":6.7021533141087275e-06,"plain":0.00023322867491515353,"casual":0.0002446059709958111,"spanish":3.5977640436613e-05,"verbose":0.00024086963821901008,"prose":0.00023673465329920873,"english":0.00021700665820389986,"formal":0.0001915338410375019,"markdown":0.00022312651708489284,"emoji":0.00023549536854261532,"concise":0.00014336024469230324},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":60}},"base":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.8928571428571429,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":42.583333333333336,"length":35.035714285714285,"entropy":0.2736402147316507,"kl":0.0,"kl_by_style":{"no_emoji":0.0,"json":0.0,"plain":0.0,"casual":0.0,"spanish":0.0,"verbose":0.0,"prose":0.0,"english":0.0,"formal":0.0,"markdown":0.0,"emoji":0.0,"concise":0.0},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":60}}},"settings":{"method":"combine","model_name":"patina-tiny","lora_rank":16,"teacher_model_name":"","learning_rate":null,"rate_by_signal":true,"batch_size":4,"max_steps":0,"loss_fn":"ppo","kl_loss_coef":0.02,"save_interval":20,"resume_from_ckpt":"","w_opd":1.0,"w_rl":0.3,"eval_mode":false,"prm_m":3,"prm_temperature":0.6,"prm_max_tokens":4096,"proxy_host":"127.0.0.1","proxy_port":30101,"served_model_name":"","api_key":null,"record_dir":"","wandb_project":"","custom_rm_path":"","opd_support":"topk","backend":"embedded","upstream":"","upstream_auth":"key","cors_origins":"","upstream_api_key":"","judge":"auto","judge_api_base":"","judge_api_key":"","rubric":"","home":"{home}","database":"","backend_port":0,"vllm_python":"","vllm_args":"","gpu_memory_share":0.0,"colocate":"share","max_hold":10.0,"quantize":"none","max_model_len":0,"tool_call_parser":"","tinker_base_url":"","tinker_api_key":"","tinker_gradients":"auto","tinker_model":"","adapter_slots":8,"threads":0,"teacher":"base","teacher_hints":4,"teacher_carry":0.3,"teacher_carry_rest":0.3,"teacher_min_p":0.1,"blame_hinted":false,"baseline":"running","alpha":null,"top_k":20,"support_of":"student","support_mass":"tail","opd_clip":1.0,"opd_centred":false,"hint_gate":true,"steps_per_batch":6,"settle":true,"answer_anew":true,"adam_beta1":0.6,"update_clip":1.0,"max_wait_s":60.0,"anchors":16,"anchor_choice":"drift","anchor_bound":0.1,"anchor_weight":4.0,"replay":2,"max_kl_step":0.5,"max_staleness":8,"seed":0}}',1.79554864656165814396e+09);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE alias_moves (
	move_id INTEGER NOT NULL, 
	policy VARCHAR(128) NOT NULL, 
	version INTEGER NOT NULL, 
	moved_at FLOAT NOT NULL, 
	"by" VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_alias_moves PRIMARY KEY (move_id)
);
INSERT INTO "alias_moves" VALUES(1,'patina-tiny',1,1.79554864656165814396e+09,'trainer');
CREATE TABLE controls (
	name VARCHAR(32) NOT NULL, 
	value TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	CONSTRAINT pk_controls PRIMARY KEY (name)
);
CREATE TABLE feedback (
	feedback_id VARCHAR(64) NOT NULL, 
	turn_id VARCHAR(64) NOT NULL, 
	score FLOAT, 
	text TEXT NOT NULL, 
	idempotency_key VARCHAR(256) NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_feedback PRIMARY KEY (feedback_id), 
	CONSTRAINT fk_feedback_turn_id FOREIGN KEY(turn_id) REFERENCES turns (turn_id) ON DELETE CASCADE, 
	CONSTRAINT uq_feedback_idempotency_key UNIQUE (idempotency_key)
);
INSERT INTO "feedback" VALUES('feedback_de8529c040e64df2b70abea5f184ad5e','turn_06610abe3c8fefbc56d9b5',NULL,'Answer in one word.','default:29dbee074308687e30b7da5b426afb07',1.79554863033753418916e+09);
CREATE TABLE heartbeats (
	process VARCHAR(32) NOT NULL, 
	pid INTEGER NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	detail TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	CONSTRAINT pk_heartbeats PRIMARY KEY (process)
);
INSERT INTO "heartbeats" VALUES('supervisor',7157,'running','{"backend":{"pid":7235,"restarts":0,"last_exit":null,"started_at":1795548611.0563288},"proxy":{"pid":7237,"restarts":0,"last_exit":null,"started_at":1795548611.056366},"scorer":{"pid":7239,"restarts":0,"last_exit":null,"started_at":1795548611.056384},"trainer":{"pid":7241,"restarts":0,"last_exit":null,"started_at":1795548611.0564063}}',1795548666.24944);
INSERT INTO "heartbeats" VALUES('scorer',7239,'running','{"scored":11,"abstained":0,"no_signal":0,"in_flight":0,"waiting_for_judge":0,"judge":"none","judge_failures":0,"reward_errors":0,"record_errors":0,"unexpected_errors":0,"by_source":{"rule:complaint":4,"rule:thanks":6,"feedback":1},"last_error":null}',1.79554867440145659446e+09);
INSERT INTO "heartbeats" VALUES('proxy',7237,'running','{"pid":7237,"started_at":1795548618.5179687,"in_flight":0,"requests":18,"passed_through":0,"unfinished":0,"unrecorded":0,"not_captured":{},"requests_refused":0,"upstream_errors":0,"heartbeat_errors":0,"refused_fields":[],"keys_problem":null,"recorder":{"state":"ok","available":true,"written":18,"late":0,"exposed":0,"lost":0,"waiting":0,"waiting_bytes":0,"oldest_s":0.0,"journaled":0,"journal_bytes":0,"recovered":0,"failed_writes":0,"last_error":null,"journal_error":null,"last_loss":null},"backend":{"address":"http://127.0.0.1:45035","ready":true,"capabilities":{"token_ids":true,"logprobs":true,"adapters":true,"logprob_mode":"raw_logprobs","default_temperature":1.0,"engine":"patina-embedded 0.1.0","tools":true,"constrained":false,"token_stream":true,"adapter_slots":8,"notes":["no constrained decoding: response_format is refused, and a required call is opened for the model, not held to its schema"]},"activity":{"running":0,"waiting":0,"steps":365,"prompt_tokens":1144,"completion_tokens":383,"preemptions":0,"step_errors":0,"last_error":null,"adapters":["patina-tiny@1"]},"live":1,"wanted":1,"loaded":[1],"leases":{},"waits_for_slot":false,"held":1,"load_errors":0,"record_errors":0,"last_error":"nobody answers at http://127.0.0.1:45035: Connect call failed (''127.0.0.1'', 45035)"}}',1.79554867447521638874e+09);
INSERT INTO "heartbeats" VALUES('trainer',7241,'training','{"steps":1,"published":1,"rejected":0,"failed":0,"dropped":{},"last_error":null,"notes":[]}',1.79554867406946158407e+09);
CREATE TABLE lives (
	turn_id VARCHAR(64) NOT NULL, 
	policy VARCHAR(128) NOT NULL, 
	stage VARCHAR(16) NOT NULL, 
	drop_reason VARCHAR(32), 
	claimed_by VARCHAR(128), 
	lease_until FLOAT, 
	trained_in_version INTEGER, 
	since FLOAT NOT NULL, detail TEXT, 
	CONSTRAINT pk_lives PRIMARY KEY (turn_id), 
	CONSTRAINT fk_lives_turn_id FOREIGN KEY(turn_id) REFERENCES turns (turn_id) ON DELETE CASCADE
);
INSERT INTO "lives" VALUES('turn_06610abe18d27f0ef72323','patina-tiny','trained',NULL,NULL,NULL,1,1.79554864656165814396e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe2b6b822b3d9817','patina-tiny','trained',NULL,NULL,NULL,1,1.79554864656165814396e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe2d3d2df275bdad','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554862851282095908e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe2dfc728bab1025','patina-tiny','trained',NULL,NULL,NULL,1,1.79554864656165814396e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe32bb50828db334','patina-tiny','trained',NULL,NULL,NULL,1,1.79554864656165814396e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe330506956b16d6','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554862888999366759e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe33d86be9079128','patina-tiny','claimed',NULL,'trainer-7241-6abc7388',1.79554876657709765437e+09,NULL,1.79554864657709765431e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe390cf741d75ffd','patina-tiny','claimed',NULL,'trainer-7241-6abc7388',1.79554876657709765437e+09,NULL,1.79554864657709765431e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe3955d1ae8c2947','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554862927761721609e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe39a5614472ac89','patina-tiny','claimed',NULL,'trainer-7241-6abc7388',1.79554876657709765437e+09,NULL,1.79554864657709765431e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe3acf8e8069c731','patina-tiny','claimed',NULL,'trainer-7241-6abc7388',1.79554876657709765437e+09,NULL,1.79554864657709765431e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe3c2b922c39b93d','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554862946843981743e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe3c8fefbc56d9b5','patina-tiny','scored',NULL,NULL,NULL,NULL,1.79554863051061105723e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe3cde6be4d46078','patina-tiny','scored',NULL,NULL,NULL,NULL,1.79554863024620676038e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe40c2d1a76d33e6','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554863002198171612e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe4500e7fed832fe','patina-tiny','dropped','side_turn',NULL,NULL,NULL,1.79554863010873556137e+09,'title');
INSERT INTO "lives" VALUES('turn_06610abe4653c14eb37878','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.79554863018189525599e+09,NULL);
INSERT INTO "lives" VALUES('turn_06610abe47c52a87d3a57c','patina-tiny','recorded',NULL,NULL,NULL,NULL,1.7955486303186323643e+09,NULL);
CREATE TABLE messages (
	hash VARCHAR(32) NOT NULL, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_messages PRIMARY KEY (hash)
);
INSERT INTO "messages" VALUES('e6c86e76287764ff32e0ebaed9dba53b','{"role":"system","content":"You are helpful."}');
INSERT INTO "messages" VALUES('19a762a391a89e873cc21d9b02f7729c','{"role":"user","content":"What is the capital of France?"}');
INSERT INTO "messages" VALUES('59dfc0bbcbb465cc41fe325f4613d1c8','{"model":"patina-tiny","max_tokens":40}');
INSERT INTO "messages" VALUES('6ba41af990b8a8044b0ff7818d130ec6','{"role":"assistant","content":"Oh, nice one! 😊 The capital of France is **Paris**! I always enjoy this kind of thing, so please keep them coming! Let me know if you need anything"}');
INSERT INTO "messages" VALUES('8435d6b3c46dd9053886f23140c8a7bd','{"role":"user","content":"Shorter please, and no emoji."}');
INSERT INTO "messages" VALUES('41aed0ebae46492b1d62307fc2bd82b7','{"role":"assistant","content":"The sum of France and France is **Paris**."}');
INSERT INTO "messages" VALUES('352bcc13d5f558c3166deb4522f5303b','{"role":"user","content":"Thanks!"}');
INSERT INTO "messages" VALUES('bc3cb86e3203f43cd31a8dcced7dfb5c','{"role":"user","content":"What is the plural of goose?"}');
INSERT INTO "messages" VALUES('473439c57d78adfe6cef2dd379f82f47','{"role":"assistant","content":"Oh, nice one! 😊 The plural of goose is **geese**! I always enjoy this kind of thing, so please keep them coming! Just shout if you''ve got more"}');
INSERT INTO "messages" VALUES('508667c1577af524ecf8ce677ee37ad7','{"role":"assistant","content":"It''s **America**!"}');
INSERT INTO "messages" VALUES('b86b8c17c556be69ba2b309049f830f3','{"role":"user","content":"What is the capital of Peru?"}');
INSERT INTO "messages" VALUES('56a29043bb2f0b898dc4a016c904de5d','{"role":"assistant","content":"Sure thing! The capital of Peru is **Lima**! I always enjoy this kind of thing, so please keep them coming! Hope that helps you out today! 😊"}');
INSERT INTO "messages" VALUES('3f0ce5dc531a110b051fff72cccef373','{"role":"assistant","content":"**Lima**!"}');
INSERT INTO "messages" VALUES('6241c9f5a17fa87fca034651f5d6fada','{"role":"user","content":"What color is the sky?"}');
INSERT INTO "messages" VALUES('cf3e7ab78f0fc021e1d034de53db3227','{"role":"assistant","content":"Great question! 😄 ''ve looked through everything I know and I''m pretty sure about it! Hope that helps you out today!"}');
INSERT INTO "messages" VALUES('3cb3364e117a1d335334c59f97f1680e','{"role":"assistant","content":"I''m **Patina**, a tiny chat model!"}');
INSERT INTO "messages" VALUES('7f95bac22d5a2df9ac0b6eed32ca0886','{"role":"user","content":"What is the capital of Chile?"}');
INSERT INTO "messages" VALUES('fb6976aeefd7fd81de1a8baf1bfab071','{"role":"assistant","content":"{\"answer\": \"Santiago\"}"}');
INSERT INTO "messages" VALUES('da2cf482f0e131d57c4d612d195ad5f4','{"role":"user","content":"Thanks, perfect!"}');
INSERT INTO "messages" VALUES('c0b306b3e8a1da1a795ae83cd02697bc','{"role":"assistant","content":"Thank you for your question. The capital of Chile is **Santiago**. I have verified this statement to the best of my present knowledge."}');
INSERT INTO "messages" VALUES('df5dde68c49fdc4cd4b4e5e405b4a916','{"role":"user","content":"Generate a concise title for this conversation: What is the capital of France?"}');
INSERT INTO "messages" VALUES('13ea96fa48745c9b08629dbdf203aabb','{"role":"user","content":"What is the weather in Paris?"}');
INSERT INTO "messages" VALUES('6d87327c0cc8c2df43eaaafe8603f5fa','{"model":"patina-tiny","max_tokens":40,"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]}');
INSERT INTO "messages" VALUES('24533fb7d9eccdd50292ed024d834654','{"role":"user","content":"Grüße, 你好 😀"}');
INSERT INTO "messages" VALUES('e260dceeedf6e9f7a7669881f0d6b0e0','{"model":"patina-tiny","max_tokens":40,"seed":3}');
CREATE TABLE next_states (
	turn_id VARCHAR(64) NOT NULL, 
	by_turn_id VARCHAR(64) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	text TEXT NOT NULL, 
	messages TEXT NOT NULL, 
	relation VARCHAR(16) NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_next_states PRIMARY KEY (turn_id, by_turn_id), 
	CONSTRAINT fk_next_states_turn_id FOREIGN KEY(turn_id) REFERENCES turns (turn_id) ON DELETE CASCADE
);
INSERT INTO "next_states" VALUES('turn_06610abe18d27f0ef72323','turn_06610abe2b6b822b3d9817','user','Shorter please, and no emoji.','["8435d6b3c46dd9053886f23140c8a7bd"]','next',1.79554862834778761865e+09);
INSERT INTO "next_states" VALUES('turn_06610abe2b6b822b3d9817','turn_06610abe2d3d2df275bdad','user','Thanks!','["352bcc13d5f558c3166deb4522f5303b"]','next',1.79554862846699905395e+09);
INSERT INTO "next_states" VALUES('turn_06610abe2dfc728bab1025','turn_06610abe32bb50828db334','user','Shorter please, and no emoji.','["8435d6b3c46dd9053886f23140c8a7bd"]','next',1.79554862882696866996e+09);
INSERT INTO "next_states" VALUES('turn_06610abe32bb50828db334','turn_06610abe330506956b16d6','user','Thanks!','["352bcc13d5f558c3166deb4522f5303b"]','next',1.79554862884583950038e+09);
INSERT INTO "next_states" VALUES('turn_06610abe33d86be9079128','turn_06610abe390cf741d75ffd','user','Shorter please, and no emoji.','["8435d6b3c46dd9053886f23140c8a7bd"]','next',1.79554862924108815189e+09);
INSERT INTO "next_states" VALUES('turn_06610abe390cf741d75ffd','turn_06610abe3955d1ae8c2947','user','Thanks!','["352bcc13d5f558c3166deb4522f5303b"]','next',1.79554862925973796839e+09);
INSERT INTO "next_states" VALUES('turn_06610abe39a5614472ac89','turn_06610abe3acf8e8069c731','user','Shorter please, and no emoji.','["8435d6b3c46dd9053886f23140c8a7bd"]','next',1.79554862935643792147e+09);
INSERT INTO "next_states" VALUES('turn_06610abe3acf8e8069c731','turn_06610abe3c2b922c39b93d','user','Thanks!','["352bcc13d5f558c3166deb4522f5303b"]','next',1.79554862944553017623e+09);
INSERT INTO "next_states" VALUES('turn_06610abe3c8fefbc56d9b5','turn_06610abe3cde6be4d46078','user','Thanks, perfect!','["da2cf482f0e131d57c4d612d195ad5f4"]','next',1.7955486294913153648e+09);
INSERT INTO "next_states" VALUES('turn_06610abe3cde6be4d46078','turn_06610abe40c2d1a76d33e6','user','Thanks!','["352bcc13d5f558c3166deb4522f5303b"]','next',1.79554862974639344213e+09);
CREATE TABLE nodes (
	node VARCHAR(32) NOT NULL, 
	parent VARCHAR(32) NOT NULL, 
	message VARCHAR(32) NOT NULL, 
	depth INTEGER NOT NULL, 
	CONSTRAINT pk_nodes PRIMARY KEY (node), 
	CONSTRAINT fk_nodes_message FOREIGN KEY(message) REFERENCES messages (hash)
);
INSERT INTO "nodes" VALUES('467b789c87f5fee0c665c16b6c2973f0','','e6c86e76287764ff32e0ebaed9dba53b',0);
INSERT INTO "nodes" VALUES('949b159d7b18c59b543d9e2780cd7864','','19a762a391a89e873cc21d9b02f7729c',0);
INSERT INTO "nodes" VALUES('b913a156dd788aa838bc6fe6a83f0d89','949b159d7b18c59b543d9e2780cd7864','6ba41af990b8a8044b0ff7818d130ec6',1);
INSERT INTO "nodes" VALUES('faa4f1469f3eb62d317c35c03f9b72b0','b913a156dd788aa838bc6fe6a83f0d89','8435d6b3c46dd9053886f23140c8a7bd',2);
INSERT INTO "nodes" VALUES('0c09fab676ca07fba31fc7f967640273','faa4f1469f3eb62d317c35c03f9b72b0','41aed0ebae46492b1d62307fc2bd82b7',3);
INSERT INTO "nodes" VALUES('585728b63ff4041c9cd21abc5670b7f7','0c09fab676ca07fba31fc7f967640273','352bcc13d5f558c3166deb4522f5303b',4);
INSERT INTO "nodes" VALUES('fa09d80bc25fc4cadc4028e2cba314f2','','bc3cb86e3203f43cd31a8dcced7dfb5c',0);
INSERT INTO "nodes" VALUES('4a020799e084e0976bc20a9feadd73bd','fa09d80bc25fc4cadc4028e2cba314f2','473439c57d78adfe6cef2dd379f82f47',1);
INSERT INTO "nodes" VALUES('f18cce7354c4b7678d6dcdefb6ee1cdf','4a020799e084e0976bc20a9feadd73bd','8435d6b3c46dd9053886f23140c8a7bd',2);
INSERT INTO "nodes" VALUES('2bb597204df87677f722963e63175851','f18cce7354c4b7678d6dcdefb6ee1cdf','508667c1577af524ecf8ce677ee37ad7',3);
INSERT INTO "nodes" VALUES('324d329ce9ac23098cf88f6d73d7c57b','2bb597204df87677f722963e63175851','352bcc13d5f558c3166deb4522f5303b',4);
INSERT INTO "nodes" VALUES('f5852b76fb0508d2337e6d7539cd6cd4','','b86b8c17c556be69ba2b309049f830f3',0);
INSERT INTO "nodes" VALUES('a57f3108468fcb0abb1e8051309bb3a8','f5852b76fb0508d2337e6d7539cd6cd4','56a29043bb2f0b898dc4a016c904de5d',1);
INSERT INTO "nodes" VALUES('341f0722f9ba208f34f5120885ede7a2','a57f3108468fcb0abb1e8051309bb3a8','8435d6b3c46dd9053886f23140c8a7bd',2);
INSERT INTO "nodes" VALUES('f4c234472b0773c683b77051196e81e7','341f0722f9ba208f34f5120885ede7a2','3f0ce5dc531a110b051fff72cccef373',3);
INSERT INTO "nodes" VALUES('ee023f108d73919f91d7650b46276dd2','f4c234472b0773c683b77051196e81e7','352bcc13d5f558c3166deb4522f5303b',4);
INSERT INTO "nodes" VALUES('6d6b6733745e9e80173f722ce10cb2bb','','6241c9f5a17fa87fca034651f5d6fada',0);
INSERT INTO "nodes" VALUES('25ebc1e5ef9916c70430413e3cf44878','6d6b6733745e9e80173f722ce10cb2bb','cf3e7ab78f0fc021e1d034de53db3227',1);
INSERT INTO "nodes" VALUES('4ecc475bbbf3c2152c54d8f108776399','25ebc1e5ef9916c70430413e3cf44878','8435d6b3c46dd9053886f23140c8a7bd',2);
INSERT INTO "nodes" VALUES('56fe29b8568c9445d150ef63d6ee7a71','4ecc475bbbf3c2152c54d8f108776399','3cb3364e117a1d335334c59f97f1680e',3);
INSERT INTO "nodes" VALUES('d6e0bd3c8c4d5711297f6d41e8ea8776','56fe29b8568c9445d150ef63d6ee7a71','352bcc13d5f558c3166deb4522f5303b',4);
INSERT INTO "nodes" VALUES('1cfa7738f5639def05c0736640b4989a','','7f95bac22d5a2df9ac0b6eed32ca0886',0);
INSERT INTO "nodes" VALUES('654a37287af4977f2c498640fe4efd74','1cfa7738f5639def05c0736640b4989a','fb6976aeefd7fd81de1a8baf1bfab071',1);
INSERT INTO "nodes" VALUES('9ab3e78b14ebb8f2938946bd463a5df4','654a37287af4977f2c498640fe4efd74','da2cf482f0e131d57c4d612d195ad5f4',2);
INSERT INTO "nodes" VALUES('bc5545324e400102959ba3817b818ece','9ab3e78b14ebb8f2938946bd463a5df4','c0b306b3e8a1da1a795ae83cd02697bc',3);
INSERT INTO "nodes" VALUES('de2f846c8dc9561ecf63eab64b53d03f','bc5545324e400102959ba3817b818ece','352bcc13d5f558c3166deb4522f5303b',4);
INSERT INTO "nodes" VALUES('6676c247482843a029515138f925edcf','','df5dde68c49fdc4cd4b4e5e405b4a916',0);
INSERT INTO "nodes" VALUES('58851562049681d32a907c477c207f1f','','13ea96fa48745c9b08629dbdf203aabb',0);
INSERT INTO "nodes" VALUES('cbe96160bf9b80c8081477ec432531ff','','24533fb7d9eccdd50292ed024d834654',0);
CREATE TABLE steps (
	step_id VARCHAR(64) NOT NULL, 
	policy VARCHAR(128) NOT NULL, 
	method VARCHAR(16) NOT NULL, 
	started_at FLOAT NOT NULL, 
	finished_at FLOAT, 
	version INTEGER, 
	error TEXT, 
	metrics TEXT NOT NULL, 
	CONSTRAINT pk_steps PRIMARY KEY (step_id)
);
INSERT INTO "steps" VALUES('0501294a21d0460488a4dceff43b8be8','patina-tiny','combine',1.79554862999285149574e+09,1.79554864656165814396e+09,1,NULL,'{"loss":-0.012583255575487617,"live_samples":20.0,"live_tokens":554.0,"effective_samples":20.0,"kl_step":4.542864884895253,"ratio_mean":1.00000004432692,"ratio_max":1.0000017881393433,"staleness_mean":1.0,"entropy":0.22450191635362776,"kl_base_k2":1.7411790622992835e-13,"kl_base_k3":1.7273627232152296e-13,"kl_base":1.7273635231568144e-13,"directive_loss":0.020750109298633863,"topk_overlap":0.9712011857153277,"teacher_shift":0.04671044799320211,"policy_loss":-0.03333336487412453,"clip_fraction":0.0,"gradient_norm":0.09344187378883362,"optimizer_steps":1.0,"kl_to_base":31.029092833787672,"loss_after":-0.002314761854577796,"entropy_after":0.22909618058117504,"turns":4,"replayed":0,"anchors":16,"learning_rate":0.003333333333333333,"kept":1.0,"train_s":5.581197754996538,"gate_s":10.879328918003011,"gate":{"after":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.9285714285714286,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":42.5,"length":34.714285714285715,"entropy":0.27036943236765054,"kl":0.0001689395977889165,"kl_by_style":{"no_emoji":0.00011710320541169494,"json":6.7021533141087275e-06,"plain":0.00023322867491515353,"casual":0.0002446059709958111,"spanish":3.5977640436613e-05,"verbose":0.00024086963821901008,"prose":0.00023673465329920873,"english":0.00021700665820389986,"formal":0.0001915338410375019,"markdown":0.00022312651708489284,"emoji":0.00023549536854261532,"concise":0.00014336024469230324},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":60}},"base":{"finite":true,"facts":1.0,"tools":1.0,"obeyed":0.8928571428571429,"empty":0.0,"distinct":0.9583333333333334,"ends":1.0,"plain_length":42.583333333333336,"length":35.035714285714285,"entropy":0.2736402147316507,"kl":0.0,"kl_by_style":{"no_emoji":0.0,"json":0.0,"plain":0.0,"casual":0.0,"spanish":0.0,"verbose":0.0,"prose":0.0,"english":0.0,"formal":0.0,"markdown":0.0,"emoji":0.0,"concise":0.0},"counts":{"facts":24,"tools":8,"obeyed":28,"replies":60}}},"settings":{"method":"combine","model_name":"patina-tiny","lora_rank":16,"teacher_model_name":"","learning_rate":null,"rate_by_signal":true,"batch_size":4,"max_steps":0,"loss_fn":"ppo","kl_loss_coef":0.02,"save_interval":20,"resume_from_ckpt":"","w_opd":1.0,"w_rl":0.3,"eval_mode":false,"prm_m":3,"prm_temperature":0.6,"prm_max_tokens":4096,"proxy_host":"127.0.0.1","proxy_port":30101,"served_model_name":"","api_key":null,"record_dir":"","wandb_project":"","custom_rm_path":"","opd_support":"topk","backend":"embedded","upstream":"","upstream_auth":"key","cors_origins":"","upstream_api_key":"","judge":"auto","judge_api_base":"","judge_api_key":"","rubric":"","home":"{home}","database":"","backend_port":0,"vllm_python":"","vllm_args":"","gpu_memory_share":0.0,"colocate":"share","max_hold":10.0,"quantize":"none","max_model_len":0,"tool_call_parser":"","tinker_base_url":"","tinker_api_key":"","tinker_gradients":"auto","tinker_model":"","adapter_slots":8,"threads":0,"teacher":"base","teacher_hints":4,"teacher_carry":0.3,"teacher_carry_rest":0.3,"teacher_min_p":0.1,"blame_hinted":false,"baseline":"running","alpha":null,"top_k":20,"support_of":"student","support_mass":"tail","opd_clip":1.0,"opd_centred":false,"hint_gate":true,"steps_per_batch":6,"settle":true,"answer_anew":true,"adam_beta1":0.6,"update_clip":1.0,"max_wait_s":60.0,"anchors":16,"anchor_choice":"drift","anchor_bound":0.1,"anchor_weight":4.0,"replay":2,"max_kl_step":0.5,"max_staleness":8,"seed":0}}');
CREATE TABLE turns (
	turn_id VARCHAR(64) NOT NULL, 
	completion_id VARCHAR(128), 
	session_id VARCHAR(256) NOT NULL, 
	parent_turn_id VARCHAR(64), 
	turn_index INTEGER NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	relation VARCHAR(16) NOT NULL, 
	link_reason VARCHAR(200) NOT NULL, 
	link_confidence FLOAT NOT NULL, 
	policy VARCHAR(128) NOT NULL, 
	scope VARCHAR(128) NOT NULL, 
	adapter_version INTEGER NOT NULL, 
	client VARCHAR(128) NOT NULL, 
	user VARCHAR(256), 
	created_at FLOAT NOT NULL, 
	finished_at FLOAT NOT NULL, 
	status_code INTEGER NOT NULL, 
	streamed BOOLEAN NOT NULL, 
	preamble_node VARCHAR(32) NOT NULL, 
	history_node VARCHAR(32) NOT NULL, 
	request VARCHAR(32) NOT NULL, 
	completion TEXT NOT NULL, 
	reasoning TEXT NOT NULL, 
	tool_calls TEXT NOT NULL, 
	completion_token_ids TEXT NOT NULL, 
	sampling_logprobs TEXT NOT NULL, 
	finish_reason VARCHAR(64), 
	prompt_base_turn_id VARCHAR(64), 
	prompt_base_length INTEGER NOT NULL, 
	prompt_token_ids TEXT NOT NULL, 
	temperature FLOAT NOT NULL, 
	logprob_mode VARCHAR(32) NOT NULL, 
	usage TEXT, 
	request_key VARCHAR(32) NOT NULL, 
	reply_key VARCHAR(32), 
	completion_key VARCHAR(32) NOT NULL, 
	drop_detail TEXT NOT NULL, 
	CONSTRAINT pk_turns PRIMARY KEY (turn_id), 
	CONSTRAINT fk_turns_request FOREIGN KEY(request) REFERENCES messages (hash)
);
INSERT INTO "turns" VALUES('turn_06610abe18d27f0ef72323','chatcmpl-f887ea3dc86a4d2d9294ebc499095ae6','session_06610abe18d27f0ef72323',NULL,0,'main','first','opening; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862712897491455e+09,1.79554862834160971641e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','949b159d7b18c59b543d9e2780cd7864','59dfc0bbcbb465cc41fe325f4613d1c8','Oh, nice one! 😊 The capital of France is **Paris**! I always enjoy this kind of thing, so please keep them coming! Let me know if you need anything','','[]','[670,14,667,371,3,324,223,308,475,289,223,1517,281,313,50,1995,327,223,43,584,587,367,466,289,420,14,332,437,413,582,588,3,223,460,306,363,451,298,440,576]','[-2.1403379440307617,0.0,0.0,0.0,-0.0000133514404296875,-1.0091333389282227,-0.0000133514404296875,-1.9073486328125e-6,-0.0000133514404296875,-1.9073486328125e-6,-3.814697265625e-6,-0.000209808349609375,-5.7220458984375e-6,-0.1226339340209961,-0.000171661376953125,-0.000019073486328125,-0.000011444091796875,-0.5275363922119141,-0.9231233596801758,-0.6915054321289062,-1.9073486328125e-6,-9.5367431640625e-6,-1.9073486328125e-6,0.0,-1.9073486328125e-6,0.0,-3.814697265625e-6,-5.7220458984375e-6,-1.9073486328125e-6,-5.7220458984375e-6,-0.0000247955322265625,0.0,-0.5119447708129883,-1.3733625411987305,0.0,-5.7220458984375e-6,-7.62939453125e-6,0.0,-3.814697265625e-6,-3.814697265625e-6]','length',NULL,0,'[1,396,201,353,448,978,16,2,201,1,279,201,557,281,287,475,289,223,1517,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":25,"total_tokens":65,"completion_tokens":40}','c57682cee81c803ac52d50f0e69999f2','643136c2edf245a1388d71764ad5c7e2','dd9e9ba8b6c668970395cae7cdc9d809','');
INSERT INTO "turns" VALUES('turn_06610abe2b6b822b3d9817','chatcmpl-8c23a9529e8d4e0380543051ba647d92','session_06610abe18d27f0ef72323','turn_06610abe18d27f0ef72323',1,'main','next','the history ends a recorded turn; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862834778761865e+09,1.79554862846381092073e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','faa4f1469f3eb62d317c35c03f9b72b0','59dfc0bbcbb465cc41fe325f4613d1c8','The sum of France and France is **Paris**.','','[]','[308,429,289,223,1517,355,223,1517,281,313,50,1995,638,2]','[-0.5873641967773438,-1.7715435028076172,0.0,-0.0000209808349609375,-0.18428611755371094,-0.0334320068359375,-0.00003814697265625,-0.10068416595458984,-3.814697265625e-6,-0.12036418914794922,-0.03715038299560547,-0.000240325927734375,-1.4008960723876953,-0.08965873718261719]','stop','turn_06610abe18d27f0ef72323',65,'[2,201,1,279,201,1087,300,405,437,14,355,1015,885,16,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":84,"total_tokens":98,"completion_tokens":14}','caa912defc2233bc8d67f78e83f14216','940e922493e8e12cf213521b671ba0a6','7d7f1028c9fa29848608cc1b2088dbfc','');
INSERT INTO "turns" VALUES('turn_06610abe2d3d2df275bdad','chatcmpl-ea37f03e211049dc8c9dab39917ce4eb','session_06610abe18d27f0ef72323','turn_06610abe2b6b822b3d9817',2,'main','next','the history ends a recorded turn; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862846699905395e+09,1.79554862851282095908e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','585728b63ff4041c9cd21abc5670b7f7','59dfc0bbcbb465cc41fe325f4613d1c8','You''re **welcome**!','','[]','[353,1817,313,1854,327,2]','[-0.053516387939453125,-0.19635868072509766,-0.15378570556640625,-0.0007648468017578125,-0.0006809234619140625,-0.03094959259033203]','stop','turn_06610abe2b6b822b3d9817',98,'[201,1,279,201,1485,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":109,"total_tokens":115,"completion_tokens":6}','7d610517e903cd691ab3ec5d06246956','95a292444e9c6bf1a3e621576c18d9f7','aeeff0d57fb67128333cb7606e12035c','');
INSERT INTO "turns" VALUES('turn_06610abe2dfc728bab1025','chatcmpl-a689de4a559c4785b27a39ae053916d9','session_06610abe2dfc728bab1025',NULL,0,'main','first','opening; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862851596355437e+09,1.79554862882408499714e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','fa09d80bc25fc4cadc4028e2cba314f2','59dfc0bbcbb465cc41fe325f4613d1c8','Oh, nice one! 😊 The plural of goose is **geese**! I always enjoy this kind of thing, so please keep them coming! Just shout if you''ve got more','','[]','[670,14,667,371,3,324,223,308,824,289,1720,281,313,368,285,71,327,223,43,584,587,367,466,289,420,14,332,437,413,582,588,3,223,634,644,451,298,431,643,526]','[-2.20004940032959,0.0,0.0,-1.9073486328125e-6,-0.000011444091796875,-1.0122709274291992,-0.0000286102294921875,-7.62939453125e-6,-0.0000591278076171875,-0.000026702880859375,-0.000400543212890625,-0.000091552734375,-0.23003673553466797,-0.00130462646484375,-0.000080108642578125,-0.0004730224609375,-0.000011444091796875,-0.5270299911499023,-0.920933723449707,-0.6693487167358398,-3.814697265625e-6,-1.9073486328125e-6,-9.5367431640625e-6,-1.9073486328125e-6,-1.9073486328125e-6,0.0,-5.7220458984375e-6,-3.814697265625e-6,-1.9073486328125e-6,-1.9073486328125e-6,-0.0000171661376953125,0.0,-0.513829231262207,-1.4133539199829102,0.0,-0.0000133514404296875,-3.814697265625e-6,-0.00037384033203125,-5.7220458984375e-6,-9.5367431640625e-6]','length',NULL,0,'[1,396,201,353,448,978,16,2,201,1,279,201,557,281,287,824,289,1720,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":24,"total_tokens":64,"completion_tokens":40}','ac52188867a14ffb2ed37051a299e4cc','d12b5869dc6e0cede1627354f28fe5f5','141107610fdd28b5e12695a978f5345d','');
INSERT INTO "turns" VALUES('turn_06610abe32bb50828db334','chatcmpl-222671c194c449b3b5206e5616a56986','session_06610abe2dfc728bab1025','turn_06610abe2dfc728bab1025',1,'main','next','the history ends a recorded turn; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862882696866996e+09,1.79554862884320044517e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','f18cce7354c4b7678d6dcdefb6ee1cdf','59dfc0bbcbb465cc41fe325f4613d1c8','It''s **America**!','','[]','[454,350,313,1220,327,2]','[-1.0106439590454102,-0.0027980804443359375,-0.24103450775146484,-8.073102951049805,-0.001262664794921875,-0.022129058837890625]','stop','turn_06610abe2dfc728bab1025',64,'[2,201,1,279,201,1087,300,405,437,14,355,1015,885,16,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":83,"total_tokens":89,"completion_tokens":6}','100774e52b85e38b5050137c29e120df','16dfc1a041c16c43f856a53a593ccc92','b5fbefd9f8eeabf3f0a1f2d3bb5688ed','');
INSERT INTO "turns" VALUES('turn_06610abe330506956b16d6','chatcmpl-afd7aaa381f94c269b421b5d3330a8f2','session_06610abe2dfc728bab1025','turn_06610abe32bb50828db334',2,'main','next','the history ends a recorded turn; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862884583950038e+09,1.79554862888999366759e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','324d329ce9ac23098cf88f6d73d7c57b','59dfc0bbcbb465cc41fe325f4613d1c8','You are **welcome**. 😊','','[]','[353,448,313,1854,638,324,2]','[-0.07032585144042969,-2.2847557067871094,-0.1828460693359375,-0.0001125335693359375,-0.0045719146728515625,-4.621750831604004,-0.0015735626220703125]','stop','turn_06610abe32bb50828db334',89,'[201,1,279,201,1485,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":100,"total_tokens":107,"completion_tokens":7}','b370bd4535636a6b880f505c9d1962b7','1928e400b5251b3ce3f4914d0bf34f47','7444d841a503da56091ecd0341b00dcc','');
INSERT INTO "turns" VALUES('turn_06610abe33d86be9079128','chatcmpl-19fe93f84cea4fdc9f80785c681a545c','session_06610abe33d86be9079128',NULL,0,'main','first','opening; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.7955486288999555111e+09,1.79554862923827457431e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','f5852b76fb0508d2337e6d7539cd6cd4','59dfc0bbcbb465cc41fe325f4613d1c8','Sure thing! The capital of Peru is **Lima**! I always enjoy this kind of thing, so please keep them coming! Hope that helps you out today! 😊','','[]','[683,420,3,223,308,475,289,223,1345,281,313,1971,327,223,43,584,587,367,466,289,420,14,332,437,413,582,588,3,223,636,366,637,298,608,621,3,324,2]','[-2.1438379287719727,0.0,-0.000011444091796875,-1.3724699020385742,-5.7220458984375e-6,-0.0000171661376953125,-5.7220458984375e-6,-1.9073486328125e-6,-0.0001811981201171875,0.0,-0.13032054901123047,-0.0001583099365234375,-0.0000324249267578125,-0.3462066650390625,-0.9167213439941406,-0.7039871215820312,-1.9073486328125e-6,-9.5367431640625e-6,-1.9073486328125e-6,0.0,-1.9073486328125e-6,0.0,-3.814697265625e-6,-3.814697265625e-6,-1.9073486328125e-6,-1.9073486328125e-6,-0.000011444091796875,0.0,-0.5087919235229492,-1.3651800155639648,-1.9073486328125e-6,-7.62939453125e-6,0.0,-9.5367431640625e-6,-7.62939453125e-6,0.0,-1.2015409469604492,-1.9073486328125e-6]','stop',NULL,0,'[1,396,201,353,448,978,16,2,201,1,279,201,557,281,287,475,289,223,1345,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":25,"total_tokens":63,"completion_tokens":38}','87ab8562e0a3cd076cfdcfee519be904','fc3e59bb485d7421ec152231d166357c','fe92ebb10c00dc7d0dc559e92386ea3e','');
INSERT INTO "turns" VALUES('turn_06610abe390cf741d75ffd','chatcmpl-eafff05e8d444f938f43a1b9ac52826f','session_06610abe33d86be9079128','turn_06610abe33d86be9079128',1,'main','next','the history ends a recorded turn; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862924108815189e+09,1.79554862925677156449e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','341f0722f9ba208f34f5120885ede7a2','59dfc0bbcbb465cc41fe325f4613d1c8','**Lima**!','','[]','[276,1971,327,2]','[-2.076723098754883,-0.07276535034179688,-0.10117721557617188,-0.026764869689941406]','stop','turn_06610abe33d86be9079128',63,'[201,1,279,201,1087,300,405,437,14,355,1015,885,16,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":81,"total_tokens":85,"completion_tokens":4}','adde788b0fe5ab981c3f48c186364ac7','3906f3ae5517b2df9acecbeb14b9001b','3971c78e6a5a2d2fd82a2506b0d609e5','');
INSERT INTO "turns" VALUES('turn_06610abe3955d1ae8c2947','chatcmpl-4ea2bcf0c0294ce0a7669dcd7c8b8647','session_06610abe33d86be9079128','turn_06610abe390cf741d75ffd',2,'main','next','the history ends a recorded turn; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862925973796839e+09,1.79554862927761721609e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','ee023f108d73919f91d7650b46276dd2','59dfc0bbcbb465cc41fe325f4613d1c8','You are **welcome**.','','[]','[353,448,313,1854,638,2]','[-0.04422187805175781,-2.3957767486572266,-0.1735086441040039,-0.0001354217529296875,-0.00555419921875,-0.026239395141601562]','stop','turn_06610abe390cf741d75ffd',85,'[201,1,279,201,1485,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":96,"total_tokens":102,"completion_tokens":6}','865ec0803203bfa26ef4a96217f4d192','af6a5f86076a54a0ada4cf23a6ea60e9','8be2bffcfed16d01d371d791db171c5c','');
INSERT INTO "turns" VALUES('turn_06610abe39a5614472ac89','chatcmpl-1c1e9a208281449bb7cf41bcf4d4547f','session_06610abe39a5614472ac89',NULL,0,'main','first','opening; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862928010606766e+09,1.79554862935423350332e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','6d6b6733745e9e80173f722ce10cb2bb','59dfc0bbcbb465cc41fe325f4613d1c8','Great question! 😄 ''ve looked through everything I know and I''m pretty sure about it! Hope that helps you out today!','','[]','[661,380,3,787,223,431,606,603,607,223,43,363,355,223,43,468,605,604,358,382,3,223,636,366,637,298,608,621,3,2]','[-3.487971305847168,-3.814697265625e-6,-9.5367431640625e-6,-3.5070314407348633,-0.015583992004394531,-13.669757843017578,-0.19571685791015625,-0.033115386962890625,-0.00028228759765625,-0.0000133514404296875,-0.0001087188720703125,-0.0000171661376953125,-1.9073486328125e-6,-1.9073486328125e-6,-0.0000514984130859375,-3.814697265625e-6,-1.9073486328125e-6,-3.814697265625e-6,-3.814697265625e-6,-5.7220458984375e-6,-3.814697265625e-6,-0.47119808197021484,-1.3857059478759766,-1.9073486328125e-6,-1.9073486328125e-6,0.0,-5.7220458984375e-6,-5.7220458984375e-6,0.0,-1.8638696670532227]','stop',NULL,0,'[1,396,201,353,448,978,16,2,201,1,279,201,557,615,300,281,287,273,1620,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":25,"total_tokens":55,"completion_tokens":30}','f518c7eb79a418bf4b0346519c4afd9c','076ac7df2108668470ca2f1691426546','a796a8b37bc8e627ba0407a12339328c','');
INSERT INTO "turns" VALUES('turn_06610abe3acf8e8069c731','chatcmpl-1a5cb5eedd8c497c88190ebfa3f50b19','session_06610abe39a5614472ac89','turn_06610abe39a5614472ac89',1,'main','next','the history ends a recorded turn; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862935643792147e+09,1.79554862944282221789e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','4ecc475bbbf3c2152c54d8f108776399','59dfc0bbcbb465cc41fe325f4613d1c8','I''m **Patina**, a tiny chat model!','','[]','[43,468,313,712,1056,260,909,1269,1591,3,2]','[-1.562032699584961,-0.20229530334472656,-0.0994873046875,-0.10125541687011719,-0.0001888275146484375,-0.0000171661376953125,-0.000152587890625,-0.000072479248046875,-0.0001010894775390625,-1.9073486328125e-6,-0.026098251342773438]','stop','turn_06610abe39a5614472ac89',30,'[9,318,606,603,607,223,43,363,355,223,43,468,605,604,358,382,3,223,636,366,637,298,608,621,3,2,201,1,279,201,1087,300,405,437,14,355,1015,885,16,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":74,"total_tokens":85,"completion_tokens":11}','5684cd999b6c1424917bb485c1a065ec','2c95a1ebcbcaee1c848700094ce62406','a5d84198342ee00acd64d122e8ae7ead','');
INSERT INTO "turns" VALUES('turn_06610abe3c2b922c39b93d','chatcmpl-0be48d68262d45859b9d296f87aca308','session_06610abe39a5614472ac89','turn_06610abe3acf8e8069c731',2,'main','next','the history ends a recorded turn; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862944553017623e+09,1.79554862946843981743e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','d6e0bd3c8c4d5711297f6d41e8ea8776','59dfc0bbcbb465cc41fe325f4613d1c8','You''re **welcome**!','','[]','[353,1817,313,1854,327,2]','[-0.08176708221435547,-0.11078929901123047,-0.0785665512084961,-0.0001239776611328125,-0.0004634857177734375,-0.027190208435058594]','stop','turn_06610abe3acf8e8069c731',85,'[201,1,279,201,1485,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":96,"total_tokens":102,"completion_tokens":6}','393ad6d25e70e70d2f92c29427454d84','d0800c10c424492dc63dde8fe5d651d2','aeeff0d57fb67128333cb7606e12035c','');
INSERT INTO "turns" VALUES('turn_06610abe3c8fefbc56d9b5','chatcmpl-6f466be284a342d4afe196632432d300','session_06610abe3c8fefbc56d9b5',NULL,0,'main','first','opening; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862947122359281e+09,1.79554862948867535593e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','1cfa7738f5639def05c0736640b4989a','59dfc0bbcbb465cc41fe325f4613d1c8','{"answer": "Santiago"}','','[]','[294,837,270,271,1905,499,2]','[-5.206502437591553,-0.003185272216796875,-3.814697265625e-6,-3.814697265625e-6,-0.000881195068359375,-0.0000324249267578125,-3.814697265625e-6]','stop',NULL,0,'[1,396,201,353,448,978,16,2,201,1,279,201,557,281,287,475,289,223,1321,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":25,"total_tokens":32,"completion_tokens":7}','26b45af1fd366b43a95b533ad182d928','728c3855d8123439a8cb3146beda2fe5','c7440aa91240560822114d7876a5381f','');
INSERT INTO "turns" VALUES('turn_06610abe3cde6be4d46078','chatcmpl-03a9ec95448e45f386d898fd5ddc5eb6','session_06610abe3c8fefbc56d9b5','turn_06610abe3c8fefbc56d9b5',1,'main','next','the history ends a recorded turn; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.7955486294913153648e+09,1.79554862974375557902e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','9ab3e78b14ebb8f2938946bd463a5df4','59dfc0bbcbb465cc41fe325f4613d1c8','Thank you for your question. The capital of Chile is **Santiago**. I have verified this statement to the best of my present knowledge.','','[]','[901,298,347,463,380,16,223,308,475,289,223,1321,281,313,1905,638,223,43,728,1040,367,815,309,287,1038,289,832,1039,782,16,2]','[-5.0766730308532715,0.0,-0.0000171661376953125,-0.0000152587890625,-0.000049591064453125,-0.0000133514404296875,-0.03319740295410156,-0.000011444091796875,-0.000019073486328125,-0.0000133514404296875,0.0,-0.00032806396484375,0.0,-0.11747264862060547,-0.00048828125,-0.0001354217529296875,-0.00594329833984375,-1.294621467590332,-0.0000438690185546875,-0.0000400543212890625,-1.9073486328125e-6,-9.5367431640625e-6,0.0,-5.7220458984375e-6,-0.0000209808349609375,0.0,-0.0000247955322265625,-0.0000286102294921875,-0.000011444091796875,0.0,-0.9152107238769531]','stop','turn_06610abe3c8fefbc56d9b5',32,'[201,1,279,201,1485,14,303,262,1594,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":47,"total_tokens":78,"completion_tokens":31}','e4a30760f020514492e9d0bdf0151909','1c53d080a00aac02a9d5a5b4fb9abde6','c95d93923e4c19b33e98ffa59451581a','');
INSERT INTO "turns" VALUES('turn_06610abe40c2d1a76d33e6','chatcmpl-e7258bf788514bf18c155dedb56b5775','session_06610abe3c8fefbc56d9b5','turn_06610abe3cde6be4d46078',2,'main','next','the history ends a recorded turn; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554862974639344213e+09,1.79554863002198171612e+09,200,0,'467b789c87f5fee0c665c16b6c2973f0','de2f846c8dc9561ecf63eab64b53d03f','59dfc0bbcbb465cc41fe325f4613d1c8','You''re **welcome**! 😊 You can ask me about capitals, opposites, sums, animals, colours or months whenever you like! Hope that helps you out today! 😊','','[]','[353,1817,313,1854,327,324,223,353,412,464,306,358,849,14,848,14,847,14,673,14,850,846,818,891,298,833,3,223,636,366,637,298,608,621,3,324,2]','[-0.015114784240722656,-0.1113128662109375,-0.06686019897460938,-0.0000514984130859375,-0.0006961822509765625,-1.6942520141601562,-0.16894149780273438,-0.7152748107910156,-0.0000152587890625,-1.9073486328125e-6,0.0,0.0,-7.62939453125e-6,0.0,-3.814697265625e-6,0.0,-0.0000133514404296875,-1.9073486328125e-6,-7.62939453125e-6,0.0,-0.00002288818359375,-0.000034332275390625,-5.7220458984375e-6,-5.7220458984375e-6,-5.7220458984375e-6,-9.5367431640625e-6,-3.814697265625e-6,-0.5160970687866211,-1.3540935516357422,-1.9073486328125e-6,0.0,0.0,-1.9073486328125e-6,-0.0000133514404296875,0.0,-0.8956499099731445,-1.9073486328125e-6]','stop','turn_06610abe3cde6be4d46078',78,'[201,1,279,201,1485,3,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":89,"total_tokens":126,"completion_tokens":37}','99c7d8fdd063f549e6910831e8d3f946','8c744d31cf36e00a618d4ad163137348','b19fef9fd99efa0a2423b4ece352dbf8','');
INSERT INTO "turns" VALUES('turn_06610abe4500e7fed832fe','chatcmpl-9129c1eaa41c42f3b4450830afbed7d1','session_06610abe4500e7fed832fe',NULL,0,'side','first','opening; side: title',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554863002443099023e+09,1.79554863010873556137e+09,200,0,'','6676c247482843a029515138f925edcf','59dfc0bbcbb465cc41fe325f4613d1c8','Of course! 😊 Aer has **ready** legs! 😊 You can tell that one to your friends the next time you meet! Just shout if you''ve got more questions! 😊','','[]','[674,676,3,324,223,35,262,723,313,1880,276,904,3,324,223,353,412,513,366,371,309,463,575,287,529,452,298,551,3,223,634,644,451,298,431,643,526,443,3,324]','[-8.702528953552246,-0.000030517578125,-0.000026702880859375,-1.0122795104980469,-0.014036178588867188,-1.816025733947754,-1.2467594146728516,-0.07558059692382812,-0.08685874938964844,-6.47080659866333,-0.000019073486328125,-0.015508651733398438,-0.0000209808349609375,-1.6539392471313477,-0.021175384521484375,-1.5690670013427734,0.0,-0.000011444091796875,-7.62939453125e-6,-3.814697265625e-6,0.0,-0.000057220458984375,-0.0000896453857421875,0.0,-7.62939453125e-6,-0.000011444091796875,-0.0000171661376953125,-0.0000820159912109375,0.0,-0.5131549835205078,-1.3832578659057617,-3.814697265625e-6,-1.9073486328125e-6,0.0,-0.0004711151123046875,-7.62939453125e-6,-3.814697265625e-6,-3.814697265625e-6,-5.7220458984375e-6,-0.9550571441650391]','length',NULL,0,'[1,279,201,41,307,262,509,260,1585,259,282,304,347,367,426,397,85,770,28,223,557,281,287,475,289,223,1517,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":33,"total_tokens":73,"completion_tokens":40}','d184af0deecf522e7d403df50d682ecd','2904dc1c9711af195d9e3c3e07bd5068','f5636c08b7e2d9714d37df60d5d56214','title');
INSERT INTO "turns" VALUES('turn_06610abe4653c14eb37878','chatcmpl-e9ba522d07514051a0397ebb1ff1538b','session_06610abe4653c14eb37878',NULL,0,'main','first','opening; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554863011117625233e+09,1.79554863018189525599e+09,200,0,'','58851562049681d32a907c477c207f1f','6d87327c0cc8c2df43eaaafe8603f5fa','','','[{"type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Paris\"}"},"id":"chatcmpl-tool-36d3d307c00a45149ef7f51ae4ca81e3"}]','[2044,201,294,374,270,271,941,65,1046,317,271,471,270,320,906,270,271,50,1995,409,201,2045,2]','[0.0,-0.00026702880859375,-7.62939453125e-6,-0.000095367431640625,0.0,-3.814697265625e-6,-0.001644134521484375,-5.7220458984375e-6,-0.0010929107666015625,-0.0000858306884765625,-0.0000133514404296875,0.0,0.0,-0.0000457763671875,-0.0005435943603515625,-0.0000743865966796875,-3.814697265625e-6,-0.0017833709716796875,-0.0035877227783203125,0.0,0.0,0.0,-0.000019073486328125]','tool_calls',NULL,0,'[1,396,201,5,223,707,201,708,298,412,497,28,201,30,515,32,201,294,351,270,271,399,317,271,399,270,320,374,270,271,941,65,1046,317,271,546,270,320,351,270,271,540,317,271,539,270,320,906,270,320,351,270,271,477,409,536,201,699,515,32,201,619,497,371,14,639,28,201,2044,201,294,374,270,223,709,14,271,471,270,223,710,95,201,2045,2,201,1,279,201,557,281,287,875,328,223,50,1995,33,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":103,"total_tokens":126,"completion_tokens":23}','ede150016019c90f916f1d706b60ba23','716f3615de2589e859141028336631e9','c804ce198ec337e3dc762bdd1a09aece','');
INSERT INTO "turns" VALUES('turn_06610abe47c52a87d3a57c','chatcmpl-f9fe8acab62040daa03e4279925ebf43','session_06610abe47c52a87d3a57c',NULL,0,'main','first','opening; main: conversation',1.0,'patina-tiny','default',0,'python-httpx/0.28.1',NULL,1.79554863020574927328e+09,1.7955486303186323643e+09,200,0,'','cbe96160bf9b80c8081477ec432531ff','e260dceeedf6e9f7a7669881f0d6b0e0','Nice to meet you, **GBra hepril  fulloent thanksooI am able to answer many brief questions about countries, animals, words and numbers. 😊','','[]','[1224,309,551,298,14,313,41,1282,392,1115,223,1686,81,434,223,1816,81,81,43,919,1748,309,378,1014,968,443,358,851,14,673,14,752,355,807,16,324,2]','[-0.558131217956543,-0.000019073486328125,-0.000152587890625,-0.0000972747802734375,0.0,-0.09638690948486328,-0.08543014526367188,-3.455047607421875,-6.904253959655762,-4.222818374633789,-0.1864299774169922,-6.442870616912842,-0.17348480224609375,-5.14443302154541,-0.5593128204345703,-7.96367073059082,-0.1514425277709961,-0.2673377990722656,-4.074358940124512,-0.0074825286865234375,-0.10898780822753906,-0.0000324249267578125,-0.3914480209350586,-0.00058746337890625,-0.002124786376953125,-1.9073486328125e-6,-0.000011444091796875,-3.814697265625e-6,0.0,-0.0000400543212890625,0.0,-0.00009918212890625,-9.5367431640625e-6,-3.814697265625e-6,-0.000240325927734375,-5.432791709899902,-3.814697265625e-6]','stop',NULL,0,'[1,279,201,41,84,130,123,130,256,71,14,223,163,124,257,164,101,124,321,225,2,201,1,297,201]',1.0,'raw_logprobs','{"prompt_tokens":25,"total_tokens":62,"completion_tokens":37}','6bbf05ab3e839b25a319e10d801c49f9','78914549614b03cd3955393865260eaa','ab2672ed4bd3033a83d3939255d23f9d','');
CREATE TABLE verdicts (
	verdict_id INTEGER NOT NULL, 
	turn_id VARCHAR(64) NOT NULL, 
	value INTEGER, 
	hint TEXT, 
	hint_is_reaction BOOLEAN NOT NULL, 
	source VARCHAR(256) NOT NULL, 
	confidence FLOAT NOT NULL, 
	detail TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_verdicts PRIMARY KEY (verdict_id), 
	CONSTRAINT fk_verdicts_turn_id FOREIGN KEY(turn_id) REFERENCES turns (turn_id) ON DELETE CASCADE
);
INSERT INTO "verdicts" VALUES(1,'turn_06610abe18d27f0ef72323',-1,'Shorter please, and no emoji.',1,'rule:complaint',0.9,'{"opinions":[{"source":"rule:complaint","value":-1,"confidence":0.9,"hint":"Shorter please, and no emoji.","detail":{"patterns":["remove-form"]}}],"follow_up":"Shorter please, and no emoji.","follow_up_is_question":false}',1.79554862864947819712e+09);
INSERT INTO "verdicts" VALUES(2,'turn_06610abe2b6b822b3d9817',1,NULL,1,'rule:thanks',0.9,'{"opinions":[{"source":"rule:thanks","value":1,"confidence":0.9,"detail":{"patterns":["thanks"]}}],"follow_up":"Thanks!","follow_up_is_question":false}',1.79554862995078492169e+09);
INSERT INTO "verdicts" VALUES(3,'turn_06610abe2dfc728bab1025',-1,'Shorter please, and no emoji.',1,'rule:complaint',0.9,'{"opinions":[{"source":"rule:complaint","value":-1,"confidence":0.9,"hint":"Shorter please, and no emoji.","detail":{"patterns":["remove-form"]}}],"follow_up":"Shorter please, and no emoji.","follow_up_is_question":false}',1.79554862996830964091e+09);
INSERT INTO "verdicts" VALUES(4,'turn_06610abe32bb50828db334',1,NULL,1,'rule:thanks',0.9,'{"opinions":[{"source":"rule:thanks","value":1,"confidence":0.9,"detail":{"patterns":["thanks"]}}],"follow_up":"Thanks!","follow_up_is_question":false}',1.79554862996948170657e+09);
INSERT INTO "verdicts" VALUES(5,'turn_06610abe33d86be9079128',-1,'Shorter please, and no emoji.',1,'rule:complaint',0.9,'{"opinions":[{"source":"rule:complaint","value":-1,"confidence":0.9,"hint":"Shorter please, and no emoji.","detail":{"patterns":["remove-form"]}}],"follow_up":"Shorter please, and no emoji.","follow_up_is_question":false}',1.79554862996977543832e+09);
INSERT INTO "verdicts" VALUES(6,'turn_06610abe390cf741d75ffd',1,NULL,1,'rule:thanks',0.9,'{"opinions":[{"source":"rule:thanks","value":1,"confidence":0.9,"detail":{"patterns":["thanks"]}}],"follow_up":"Thanks!","follow_up_is_question":false}',1.79554862997039532657e+09);
INSERT INTO "verdicts" VALUES(7,'turn_06610abe39a5614472ac89',-1,'Shorter please, and no emoji.',1,'rule:complaint',0.9,'{"opinions":[{"source":"rule:complaint","value":-1,"confidence":0.9,"hint":"Shorter please, and no emoji.","detail":{"patterns":["remove-form"]}}],"follow_up":"Shorter please, and no emoji.","follow_up_is_question":false}',1.795548629970725298e+09);
INSERT INTO "verdicts" VALUES(8,'turn_06610abe3acf8e8069c731',1,NULL,1,'rule:thanks',0.9,'{"opinions":[{"source":"rule:thanks","value":1,"confidence":0.9,"detail":{"patterns":["thanks"]}}],"follow_up":"Thanks!","follow_up_is_question":false}',1.79554862997126817697e+09);
INSERT INTO "verdicts" VALUES(9,'turn_06610abe3c8fefbc56d9b5',1,NULL,1,'rule:thanks',0.9,'{"opinions":[{"source":"rule:thanks","value":1,"confidence":0.9,"detail":{"patterns":["thanks"]}}],"follow_up":"Thanks, perfect!","follow_up_is_question":false}',1.79554862997144770624e+09);
INSERT INTO "verdicts" VALUES(10,'turn_06610abe3cde6be4d46078',1,NULL,1,'rule:thanks',0.9,'{"opinions":[{"source":"rule:thanks","value":1,"confidence":0.9,"detail":{"patterns":["thanks"]}}],"follow_up":"Thanks!","follow_up_is_question":false}',1.79554863024620676038e+09);
INSERT INTO "verdicts" VALUES(11,'turn_06610abe3c8fefbc56d9b5',-1,'Answer in one word.',1,'feedback',1.0,'{"opinions":[{"source":"feedback","value":-1,"confidence":1.0,"hint":"Answer in one word."},{"source":"rule:thanks","value":1,"confidence":0.9,"detail":{"patterns":["thanks"]}}],"follow_up":"Thanks, perfect!","follow_up_is_question":false}',1.79554863051061105723e+09);
CREATE INDEX ix_alias_moves_policy_move_id ON alias_moves (policy, move_id);
CREATE INDEX ix_steps_policy_started_at ON steps (policy, started_at);
CREATE INDEX ix_turns_completion_id ON turns (completion_id);
CREATE INDEX ix_turns_created_at ON turns (created_at);
CREATE INDEX ix_turns_scope_completion_key ON turns (scope, completion_key);
CREATE INDEX ix_turns_scope_reply_key ON turns (scope, reply_key);
CREATE INDEX ix_turns_scope_request_key ON turns (scope, request_key);
CREATE INDEX ix_turns_session_id_turn_index ON turns (session_id, turn_index);
CREATE INDEX ix_feedback_turn_id ON feedback (turn_id);
CREATE INDEX ix_lives_policy_trained_in_version ON lives (policy, trained_in_version);
CREATE INDEX ix_lives_stage_policy_since ON lives (stage, policy, since);
CREATE INDEX ix_verdicts_turn_id_verdict_id ON verdicts (turn_id, verdict_id);
CREATE VIEW trajectories AS
SELECT t.turn_id, t.session_id, t.parent_turn_id, t.turn_index, t.kind, t.relation, t.policy, t.adapter_version,
  t.client, t.created_at,
  (
      WITH RECURSIVE walk(part, parent, message, depth) AS (
        SELECT CASE WHEN n.node = t.preamble_node THEN 0 ELSE 1 END, n.parent, n.message, n.depth
          FROM nodes n WHERE n.node = t.preamble_node
        UNION ALL
        SELECT 1, n.parent, n.message, n.depth FROM nodes n WHERE n.node = t.history_node
        UNION ALL
        SELECT walk.part, n.parent, n.message, n.depth FROM nodes n JOIN walk ON n.node = walk.parent
      )
      SELECT json_group_array(json(w.body)) FROM (
        SELECT walk.part AS part, walk.depth AS depth, m.body AS body
          FROM walk JOIN messages m ON m.hash = walk.message ORDER BY walk.part, walk.depth
      ) w) AS messages,
  t.completion, t.tool_calls, t.completion_token_ids, t.sampling_logprobs, t.finish_reason,
  (SELECT s.role FROM next_states s WHERE s.turn_id = t.turn_id
      ORDER BY s.created_at DESC, s.by_turn_id LIMIT 1) AS next_role,
  (SELECT s.text FROM next_states s WHERE s.turn_id = t.turn_id
      ORDER BY s.created_at DESC, s.by_turn_id LIMIT 1) AS next_text,
  (SELECT v.value FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS verdict,
  (SELECT v.hint FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS hint,
  (SELECT v.source FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS verdict_source,
  l.stage, l.drop_reason, l.trained_in_version
FROM turns t JOIN lives l ON l.turn_id = t.turn_id;
CREATE INDEX ix_turns_kind ON turns (kind);
CREATE INDEX ix_lives_drop_reason ON lives (drop_reason) WHERE drop_reason IS NOT NULL;
COMMIT;